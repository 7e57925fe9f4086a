#include <stormo/train/gradient_reducer.h>

#include <stormo/tensor/bridge.h>
#include <stormo/tensor/dtype.h>

namespace stormo::train {
namespace {

// Stolen gradients may alias: autograd checks the tensor's use count only, not its storage's. An
// average is written only where nobody else looks.
bool may_be_written(const torch::Tensor& gradient) {
  return gradient.layout() == torch::kStrided && gradient.is_non_overlapping_and_dense() &&
         gradient.storage().use_count() == 1;
}

// Memory that peers read where it lies, even below the allocator's threshold.
torch::Tensor arena_tensor(comm::Communicator& world, std::int64_t count, torch::ScalarType type) {
  transport::Arena& arena = world.arena();
  void* block = arena.allocate(static_cast<std::size_t>(count) * torch::elementSize(type));
  if (block == nullptr) return torch::zeros({count}, type);
  return torch::from_blob(
             block, {count}, [&arena](void* p) { arena.deallocate(p); }, type)
      .zero_();
}

}  // namespace

/// The parameters of one element type: what one all_reduce takes. The flat buffer holds a flag per
/// parameter, then the values of the small ones.
struct GradientReducer::Pack {
  std::vector<NamedParameter> parameters;  ///< large ones first
  std::size_t num_large = 0;
  torch::Tensor flat;
  std::vector<torch::Tensor> views;  ///< of the small ones, shaped

  torch::Tensor flags() const {
    return flat.narrow(0, 0, static_cast<std::int64_t>(parameters.size()));
  }
  void allocate(comm::Communicator& world);
  /// Flags and small values into the flat buffer.
  void gather();
  /// The large gradients, or contiguous copies of those that must not be written.
  std::vector<torch::Tensor> large_values() const;
  /// The averages back into the gradients; drops what no rank has.
  void scatter(const std::vector<torch::Tensor>& large);
};

void GradientReducer::Pack::allocate(comm::Communicator& world) {
  auto offset = static_cast<std::int64_t>(parameters.size());
  std::int64_t count = offset;
  for (std::size_t i = num_large; i < parameters.size(); ++i) count += parameters[i].tensor.numel();
  flat = arena_tensor(world, count, parameters.front().tensor.scalar_type());
  for (std::size_t i = num_large; i < parameters.size(); ++i) {
    const torch::Tensor& p = parameters[i].tensor;
    views.push_back(flat.narrow(0, offset, p.numel()).view(p.sizes()));
    offset += p.numel();
  }
}

void GradientReducer::Pack::gather() {
  std::vector<float> present;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor& gradient = parameters[i].tensor.grad();
    present.push_back(gradient.defined() ? 1.0f : 0.0f);
    if (i < num_large) continue;
    torch::Tensor& view = views[i - num_large];
    if (gradient.defined()) {
      view.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
    } else {
      view.zero_();
    }
  }
  flags().copy_(torch::from_blob(present.data(), {static_cast<std::int64_t>(present.size())}));
}

std::vector<torch::Tensor> GradientReducer::Pack::large_values() const {
  std::vector<torch::Tensor> out;
  for (std::size_t i = 0; i < num_large; ++i) {
    const torch::Tensor& p = parameters[i].tensor;
    const torch::Tensor& gradient = p.grad();
    if (!gradient.defined()) {
      out.push_back(torch::zeros(p.sizes(), p.options()));
    } else if (may_be_written(gradient) && gradient.is_contiguous()) {
      out.push_back(gradient);
    } else {
      const torch::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
      out.push_back(dense.clone(torch::MemoryFormat::Contiguous));
    }
  }
  return out;
}

void GradientReducer::Pack::scatter(const std::vector<torch::Tensor>& large) {
  const torch::Tensor shares = flags().to(torch::kFloat64);
  const double* share = shares.const_data_ptr<double>();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    torch::Tensor& gradient = parameters[i].tensor.mutable_grad();
    if (share[i] == 0) {
      gradient.reset();
    } else if (i < num_large) {
      if (gradient.defined() && gradient.is_same(large[i])) {
        gradient.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
      } else {
        gradient = large[i];
      }
    } else if (gradient.defined() && may_be_written(gradient)) {
      gradient.copy_(views[i - num_large]);
    } else {
      gradient = views[i - num_large].clone();
    }
  }
}

GradientReducer::GradientReducer(comm::Communicator& world, std::vector<NamedParameter> parameters)
    : world_(world) {
  const auto pack_of = [this](torch::ScalarType type) -> Pack& {
    for (auto& pack : packs_) {
      if (pack->parameters.front().tensor.scalar_type() == type) return *pack;
    }
    return *packs_.emplace_back(std::make_unique<Pack>());
  };
  for (const bool large : {true, false}) {
    for (const NamedParameter& p : parameters) {
      const bool in_place = static_cast<std::int64_t>(p.tensor.nbytes()) >= kInPlaceBytes;
      if (in_place != large) continue;
      Status supported = tensor::dtype_of(p.tensor.scalar_type()).status();
      if (supported.ok() && !(p.tensor.is_cpu() && p.tensor.layout() == torch::kStrided)) {
        supported = invalid_argument("only dense tensors on the CPU can be reduced");
      }
      throw_if_error(supported.within("gradient of '" + p.name + "'"));
      Pack& pack = pack_of(p.tensor.scalar_type());
      pack.parameters.push_back(p);
      if (large) ++pack.num_large;
    }
  }
  for (auto& pack : packs_) pack->allocate(world_);
}

GradientReducer::~GradientReducer() = default;

Status GradientReducer::reduce(double weight) {
  if (world_.size() == 1) return {};  // the average over one rank, bit for bit
  const torch::NoGradGuard no_grad;
  for (auto& pack : packs_) {
    pack->gather();
    const std::vector<torch::Tensor> large = pack->large_values();
    std::vector<comm::Buffer> buffers;
    for (const torch::Tensor& value : large) buffers.push_back(tensor::buffer_of(value));
    buffers.push_back(tensor::buffer_of(pack->flat));
    STORMO_RETURN_IF_ERROR(world_.all_reduce(buffers, comm::ReduceOp::kWeightedAverage, weight));
    pack->scatter(large);
  }
  return {};
}

}  // namespace stormo::train
