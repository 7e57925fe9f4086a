#include <stormo/train/reduction/gradient_bucket.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stormo/comm/codec/encoders.h>
#include <stormo/tensor/allocator.h>
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

static_assert(analysis::kInPlaceBytes == tensor::kArenaThresholdBytes, "peers read them there");

/// That the plan is of these parameters, whose types the reducer has compared.
Status check(const analysis::Collective& sum, const std::vector<NamedParameter>& parameters,
             bool flags_before) {
  auto elements = flags_before ? 0 : static_cast<std::int64_t>(parameters.size());
  for (const NamedParameter& p : parameters) elements += p.tensor.numel();
  return check_elements(sum, elements, sum.dtype);
}

// On the CPU in memory that peers read where it lies, even below the allocator's threshold.
torch::Tensor flat_tensor(comm::Communicator& world, std::int64_t count, torch::ScalarType type,
                          torch::Device device) {
  if (!device.is_cpu()) return torch::zeros({count}, torch::dtype(type).device(device));
  transport::Arena& arena = world.arena();
  void* block = arena.allocate(static_cast<std::size_t>(count) * torch::elementSize(type));
  if (block == nullptr) return torch::zeros({count}, type);
  return torch::from_blob(
             block, {count}, [&arena](void* p) { arena.deallocate(p); }, type)
      .zero_();
}

}  // namespace

GradientBucket::GradientBucket(comm::Communicator& world, std::vector<NamedParameter> parameters,
                               analysis::Collective sum, std::optional<analysis::Collective> flags)
    : world_(world),
      parameters_(std::move(parameters)),
      sum_(std::move(sum)),
      flags_(std::move(flags)),
      num_large_(sum_.in_place.size()) {
  throw_if_error(check(sum_, parameters_, flags_.has_value())
                     .within("gradients of '" + name() + "' and others"));
  const auto small = parameters_.begin() + static_cast<std::ptrdiff_t>(num_large_);
  auto offset = flags_ ? 0 : static_cast<std::int64_t>(parameters_.size());
  std::int64_t count = offset;
  for (auto p = small; p != parameters_.end(); ++p) count += p->tensor.numel();
  flat_ = flat_tensor(world, count, tensor::scalar_type_of(sum_.dtype),
                      parameters_.front().tensor.device());
  if (row_of(sum_.codec).in_blocks()) {
    const comm::Encoder& encoder = *comm::find_encoder(sum_.codec);
    encoded_ = std::make_unique<comm::EncodedSum>(world, encoder, sum_.elements);
  }
  for (auto p = small; p != parameters_.end(); ++p) {
    views_.push_back(flat_.narrow(0, offset, p->tensor.numel()).view(p->tensor.sizes()));
    offset += p->tensor.numel();
  }
}

torch::Tensor GradientBucket::flags() const {
  return flat_.narrow(0, 0, static_cast<std::int64_t>(parameters_.size()));
}

torch::Tensor GradientBucket::values() const {
  const auto flags = flags_ ? 0 : static_cast<std::int64_t>(parameters_.size());
  return flat_.narrow(0, flags, flat_.numel() - flags);
}

void GradientBucket::gather(double share) {
  const torch::NoGradGuard no_grad;
  shares_.clear();
  buffers_.clear();
  large_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& p = parameters_[i].tensor;
    const torch::Tensor& gradient = p.grad();
    shares_.push_back(gradient.defined() ? 1 : 0);
    if (i >= num_large_) {
      torch::Tensor& view = views_[i - num_large_];
      if (gradient.defined()) {
        view.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
      } else {
        view.zero_();
      }
      continue;
    }
    if (!gradient.defined()) {
      large_.push_back(torch::zeros(p.sizes(), p.options()));
    } else if (may_be_written(gradient) && gradient.is_contiguous()) {
      large_.push_back(gradient);
    } else {
      const torch::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
      large_.push_back(dense.clone(torch::MemoryFormat::Contiguous));
    }
    buffers_.push_back(tensor::buffer_of(large_.back()));
  }
  if (!flags_) {
    flags().copy_(torch::from_blob(shares_.data(), flags().sizes(), torch::kFloat64));
    buffers_.push_back(tensor::buffer_of(flat_));
    return;
  }
  if (encoded_ != nullptr) {
    torch::Tensor all = values();
    if (share == 0) {
      all.zero_();
    } else {
      all.mul_(share);
    }
    for (double& s : shares_) s *= share;
  }
  const torch::Tensor packed = values();
  if (packed.numel() > 0) buffers_.push_back(tensor::buffer_of(packed));
}

void GradientBucket::scatter() {
  const torch::NoGradGuard no_grad;
  if (!flags_) {
    torch::from_blob(shares_.data(), flags().sizes(), torch::kFloat64).copy_(flags());
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (shares_[i] == 0) {
      gradient.reset();
    } else if (i < num_large_) {
      if (gradient.defined() && gradient.is_same(large_[i])) {
        gradient.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
      } else {
        gradient = large_[i];
      }
    } else if (gradient.defined() && may_be_written(gradient)) {
      gradient.copy_(views_[i - num_large_]);
    } else {
      gradient = views_[i - num_large_].to(parameters_[i].tensor.scalar_type(),
                                           /*non_blocking=*/false, /*copy=*/true);
    }
  }
  large_.clear();
}

Operands GradientBucket::operands(std::span<const comm::Buffer> buffers, comm::EncodedSum* encoding,
                                  double weight, double total_weight) const {
  Operands out = in_place(buffers);
  out.encoding = encoding;
  if (encoded_ != nullptr) return out;  // terms of the average already
  out.weight = weight;
  out.total_weight = total_weight;
  return out;
}

Status GradientBucket::reduce(double weight, double total_weight) {
  gather(total_weight > 0 ? weight / total_weight : 0);
  const comm::Buffer shares(shares_);
  if (flags_) {
    const Operands flags = operands({&shares, 1}, nullptr, weight, total_weight);
    STORMO_RETURN_IF_ERROR(perform_transfer(world_, *flags_, flags));
  }
  const Operands all = operands(buffers_, encoded_.get(), weight, total_weight);
  STORMO_RETURN_IF_ERROR(perform_transfer(world_, sum_, all));
  scatter();
  return {};
}

void GradientBucket::start(double weight, double total_weight) {
  gather(total_weight > 0 ? weight / total_weight : 0);
  const comm::Buffer shares(shares_);
  if (flags_) {
    const Operands flags = operands({&shares, 1}, nullptr, weight, total_weight);
    work_.push_back(start_transfer(world_, *flags_, flags));
  }
  const Operands all = operands(buffers_, encoded_.get(), weight, total_weight);
  work_.push_back(start_transfer(world_, sum_, all));
}

Status GradientBucket::wait() {
  Status outcome;
  for (comm::Work& work : std::exchange(work_, {})) {
    if (const Status one = work.wait(); outcome.ok()) outcome = one;
  }
  return outcome;
}

Status GradientBucket::finish() {
  STORMO_RETURN_IF_ERROR(wait());
  scatter();
  return {};
}

void GradientBucket::abandon() {
  (void)wait();
  large_.clear();
}

}  // namespace stormo::train
