#include <stormo/train/reduction/gradient_bucket.h>

#include <algorithm>
#include <utility>

#include <stormo/comm/codec/encoders.h>
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

bool is_large(const NamedParameter& p) {
  return static_cast<std::int64_t>(p.tensor.nbytes()) >= GradientBucket::kInPlaceBytes;
}

torch::ScalarType packed_type(plan::Codec codec, torch::ScalarType own) {
  if (row_of(codec).in_blocks()) return torch::kFloat32;
  return tensor::scalar_type_of(type_sent(codec, tensor::dtype_of(own).take_or_throw()));
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

GradientBucket::GradientBucket(comm::Communicator& world, std::vector<NamedParameter> parameters,
                               plan::Codec codec, std::string algorithm)
    : world_(world), parameters_(std::move(parameters)), algorithm_(std::move(algorithm)) {
  const torch::ScalarType own = parameters_.front().tensor.scalar_type();
  const torch::ScalarType type = packed_type(codec, own);
  const bool encoded = row_of(codec).in_blocks();
  const auto in_place = [&](const NamedParameter& p) {
    return type == own && !encoded && is_large(p);
  };
  const auto small = std::stable_partition(parameters_.begin(), parameters_.end(), in_place);
  num_large_ = static_cast<std::size_t>(small - parameters_.begin());
  auto offset = static_cast<std::int64_t>(parameters_.size());
  std::int64_t count = offset;
  for (auto p = small; p != parameters_.end(); ++p) count += p->tensor.numel();
  flat_ = arena_tensor(world, count, type);
  if (encoded) {
    const comm::Encoder& encoder = *comm::find_encoder(codec);
    const auto flags = static_cast<std::int64_t>(parameters_.size());
    encoded_ = std::make_unique<comm::EncodedSum>(world, encoder, count - flags);
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
  const auto flags = static_cast<std::int64_t>(parameters_.size());
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
  if (encoded_ == nullptr) {
    flags().copy_(torch::from_blob(shares_.data(), flags().sizes(), torch::kFloat64));
    buffers_.push_back(tensor::buffer_of(flat_));
    return;
  }
  values_ = values();
  if (share == 0) {
    values_.zero_();
  } else {
    values_.mul_(share);
  }
  for (double& s : shares_) s *= share;
  buffers_ = {comm::Buffer(shares_), tensor::buffer_of(values_)};
}

void GradientBucket::scatter() {
  const torch::NoGradGuard no_grad;
  if (encoded_ == nullptr) {
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

std::vector<comm::Request> GradientBucket::requests(double weight, double total_weight) {
  comm::Request sum{.kind = comm::OperationKind::kAllReduce, .in = buffers_, .out = buffers_};
  if (encoded_ == nullptr) {
    sum.reduction = comm::ReduceOp::kWeightedAverage;
    sum.weight = weight;
    sum.total_weight = total_weight;
    sum.algorithm = algorithm_;
    return {sum};
  }
  comm::Request shares = sum;
  shares.in = shares.out = std::span(buffers_).first(1);
  sum.in = sum.out = std::span(buffers_).last(1);
  sum.encoding = encoded_.get();
  return {shares, sum};
}

Status GradientBucket::reduce(double weight, double total_weight) {
  gather(total_weight > 0 ? weight / total_weight : 0);
  for (const comm::Request& r : requests(weight, total_weight)) {
    STORMO_RETURN_IF_ERROR(world_.run(r, Deadline::never()));
  }
  scatter();
  return {};
}

void GradientBucket::start(double weight, double total_weight) {
  gather(total_weight > 0 ? weight / total_weight : 0);
  for (const comm::Request& r : requests(weight, total_weight)) work_.push_back(world_.submit(r));
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
