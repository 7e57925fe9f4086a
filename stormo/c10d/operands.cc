#include <stormo/c10d/operands.h>

#include <cstring>
#include <optional>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <stormo/tensor/allocator.h>
#include <stormo/tensor/dtype.h>

namespace stormo::c10d {
namespace {

using RedOpType = ::c10d::ReduceOp::RedOpType;

/// Whether the bytes at data_ptr() are the elements, in order.
bool is_in_order(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

const char* name_of(RedOpType op) {
  switch (op) {
    case RedOpType::SUM: return "SUM";
    case RedOpType::AVG: return "AVG";
    case RedOpType::PRODUCT: return "PRODUCT";
    case RedOpType::MIN: return "MIN";
    case RedOpType::MAX: return "MAX";
    case RedOpType::BAND: return "BAND";
    case RedOpType::BOR: return "BOR";
    case RedOpType::BXOR: return "BXOR";
    case RedOpType::PREMUL_SUM: return "PREMUL_SUM";
    case RedOpType::UNUSED: break;
  }
  return "an unknown reduction";
}

std::optional<comm::ReduceOp> number_op(RedOpType op) {
  switch (op) {
    case RedOpType::SUM:
    case RedOpType::PREMUL_SUM: return comm::ReduceOp::kSum;
    case RedOpType::AVG: return comm::ReduceOp::kAverage;
    case RedOpType::PRODUCT: return comm::ReduceOp::kProduct;
    case RedOpType::MIN: return comm::ReduceOp::kMin;
    case RedOpType::MAX: return comm::ReduceOp::kMax;
    case RedOpType::BAND: return comm::ReduceOp::kBitAnd;
    case RedOpType::BOR: return comm::ReduceOp::kBitOr;
    case RedOpType::BXOR: return comm::ReduceOp::kBitXor;
    case RedOpType::UNUSED: break;
  }
  return std::nullopt;
}

/// Of true and false the sum is "any", the product "all", as in the rest of PyTorch.
std::optional<comm::ReduceOp> bool_op(RedOpType op) {
  switch (op) {
    case RedOpType::SUM:
    case RedOpType::MAX:
    case RedOpType::BOR: return comm::ReduceOp::kLogicalOr;
    case RedOpType::PRODUCT:
    case RedOpType::MIN:
    case RedOpType::BAND: return comm::ReduceOp::kLogicalAnd;
    case RedOpType::BXOR: return comm::ReduceOp::kLogicalXor;
    default: return std::nullopt;
  }
}

/// The signed type whose sums and products have the same bits.
std::optional<DType> signed_twin(c10::ScalarType type) {
  switch (type) {
    case c10::kUInt16: return DType::kInt16;
    case c10::kUInt32: return DType::kInt32;
    case c10::kUInt64: return DType::kInt64;
    default: return std::nullopt;
  }
}

std::optional<Arithmetic> find_arithmetic(RedOpType op, c10::ScalarType type) {
  if (type == c10::kBool) {
    const auto logical = bool_op(op);
    if (!logical) return std::nullopt;
    return Arithmetic{*logical, DType::kBool};
  }
  const auto number = number_op(op);
  if (!number) return std::nullopt;
  const bool orders = op == RedOpType::MIN || op == RedOpType::MAX;
  const bool adds = *number == comm::ReduceOp::kSum || *number == comm::ReduceOp::kAverage;
  if (const auto twin = signed_twin(type)) {
    if (orders || op == RedOpType::AVG) return std::nullopt;
    return Arithmetic{*number, *twin};
  }
  const bool complex = c10::isComplexType(type);
  if (complex && !adds) return std::nullopt;
  const auto dtype = tensor::dtype_of(complex ? c10::toRealValueType(type) : type);
  if (!dtype.ok()) return std::nullopt;
  const bool bits = *number >= comm::ReduceOp::kBitAnd && *number <= comm::ReduceOp::kBitXor;
  if (bits == is_floating(*dtype) && (bits || op == RedOpType::AVG)) return std::nullopt;
  if (op == RedOpType::AVG && !is_floating(*dtype)) return std::nullopt;
  return Arithmetic{*number, *dtype, complex ? 2 : 1};
}

}  // namespace

void check_dense(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "stormo: an undefined tensor; assign a value first");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "stormo: a tensor on ", tensor.device(),
                    "; only tensors on the CPU are exchanged. Use another backend for this device, "
                    "e.g. init_process_group(\"cpu:stormo,cuda:nccl\")");
  TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided, "stormo: a tensor of layout ",
                    tensor.layout(), "; convert it with .to_dense()");
}

at::Tensor in_order(const at::Tensor& tensor) {
  check_dense(tensor);
  if (is_in_order(tensor)) return tensor;
  const at::NoGradGuard no_grad;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

at::Tensor in_order_unread(const at::Tensor& tensor) {
  check_dense(tensor);
  if (is_in_order(tensor)) return tensor;
  check_result(tensor);
  return at::empty(tensor.sizes(), tensor.options());
}

void check_result(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                    "stormo: results in a tensor of which several elements are one place in "
                    "memory, as expand() makes them; take its .clone()");
}

at::Tensor apart(const at::Tensor& in, const at::Tensor& out, std::int64_t before) {
  const auto* const a = static_cast<const std::byte*>(in.const_data_ptr());
  const auto* const b = static_cast<const std::byte*>(out.const_data_ptr());
  const std::size_t a_bytes = in.nbytes(), b_bytes = out.nbytes();
  if (a_bytes == 0 || b_bytes == 0 || a + a_bytes <= b || b + b_bytes <= a) return in;
  const auto [part, whole] = a_bytes < b_bytes ? std::pair(a, b) : std::pair(b, a);
  if (part - whole == before * static_cast<std::int64_t>(in.itemsize())) return in;
  const at::NoGradGuard no_grad;
  return in.clone(at::MemoryFormat::Contiguous);
}

at::Tensor new_memory(transport::Arena& arena, at::IntArrayRef sizes, at::TensorOptions options) {
  std::size_t bytes = options.dtype().itemsize();
  for (const std::int64_t n : sizes) bytes *= static_cast<std::size_t>(n);
  void* const memory = bytes < tensor::kArenaThresholdBytes ? nullptr : arena.allocate(bytes);
  if (memory == nullptr) return at::empty(sizes, options);
  return at::from_blob(
      memory, sizes, [owner = &arena](void* p) { owner->deallocate(p); }, options);
}

void assign(const at::Tensor& tensor, const at::Tensor& values) {
  if (is_in_order(tensor)) {
    if (values.nbytes() > 0) {
      std::memcpy(tensor.mutable_data_ptr(), values.const_data_ptr(), values.nbytes());
    }
    return;
  }
  const c10::InferenceMode inference(tensor.is_inference());
  const at::NoGradGuard no_grad;
  tensor.copy_(values.view(tensor.sizes()));
}

comm::Buffer copied(const at::Tensor& contiguous) {
  void* const data = contiguous.mutable_data_ptr();
  const auto dtype = tensor::dtype_of(contiguous.scalar_type());
  if (dtype.ok()) return {data, contiguous.numel(), *dtype};
  return {data, static_cast<std::int64_t>(contiguous.nbytes()), DType::kUInt8};
}

Arithmetic arithmetic_of(RedOpType op, c10::ScalarType type) {
  const auto how = find_arithmetic(op, type);
  TORCH_CHECK_VALUE(how.has_value(), "stormo: ", name_of(op), " of ", type,
                    " is not possible; convert the tensor to another type first");
  return *how;
}

comm::Buffer reduced(const at::Tensor& contiguous, const Arithmetic& how) {
  return {contiguous.mutable_data_ptr(), contiguous.numel() * how.parts, how.dtype};
}

bool multiplies_first(const ::c10d::ReduceOp& op) { return op.op_ == RedOpType::PREMUL_SUM; }

at::Tensor multiplied(const at::Tensor& tensor, const ::c10d::ReduceOp& op) {
  check_dense(tensor);
  // by the one name that all supported releases have
  const auto* const factor =
      dynamic_cast<const ::c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "stormo: PREMUL_SUM without a factor");
  TORCH_CHECK_VALUE(tensor.is_floating_point() || tensor.is_complex(), "stormo: PREMUL_SUM of ",
                    tensor.scalar_type(),
                    ": the factor is a real number; multiply integers before a SUM");
  const at::NoGradGuard no_grad;
  const at::Tensor ordered = tensor.contiguous();
  return factor->tensor_factor.defined() ? ordered.mul(factor->tensor_factor).to(ordered.dtype())
                                         : ordered.mul(factor->double_factor);
}

at::Tensor adjacent(std::span<const at::Tensor> tensors) {
  if (tensors.empty()) return {};
  const at::Tensor& first = tensors.front();
  const auto* next = static_cast<const std::byte*>(first.const_data_ptr());
  std::int64_t count = 0;
  for (const at::Tensor& t : tensors) {
    if (!is_in_order(t) || t.const_data_ptr() != next || t.scalar_type() != first.scalar_type() ||
        !t.storage().is_alias_of(first.storage())) {
      return {};
    }
    next += t.nbytes();
    count += t.numel();
  }
  return first.as_strided({count}, {1});
}

std::vector<std::int64_t> counts_of(std::span<const at::Tensor> tensors) {
  std::vector<std::int64_t> counts;
  counts.reserve(tensors.size());
  for (const at::Tensor& t : tensors) counts.push_back(t.numel());
  return counts;
}

}  // namespace stormo::c10d
