#include <stormo/train/reduction/gradient_bucket.h>

#include <algorithm>
#include <utility>

#include <stormo/tensor/bridge.h>

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
                               std::string algorithm, std::optional<torch::ScalarType> reduce_type)
    : world_(world), parameters_(std::move(parameters)), algorithm_(std::move(algorithm)) {
  const torch::ScalarType own = parameters_.front().tensor.scalar_type();
  const torch::ScalarType type = reduce_type.value_or(own);
  const auto in_place = [&](const NamedParameter& p) { return type == own && is_large(p); };
  const auto small = std::stable_partition(parameters_.begin(), parameters_.end(), in_place);
  num_large_ = static_cast<std::size_t>(small - parameters_.begin());
  auto offset = static_cast<std::int64_t>(parameters_.size());
  std::int64_t count = offset;
  for (auto p = small; p != parameters_.end(); ++p) count += p->tensor.numel();
  flat_ = arena_tensor(world, count, type);
  for (auto p = small; p != parameters_.end(); ++p) {
    views_.push_back(flat_.narrow(0, offset, p->tensor.numel()).view(p->tensor.sizes()));
    offset += p->tensor.numel();
  }
}

torch::Tensor GradientBucket::flags() const {
  return flat_.narrow(0, 0, static_cast<std::int64_t>(parameters_.size()));
}

void GradientBucket::gather() {
  const torch::NoGradGuard no_grad;
  std::vector<float> present;
  buffers_.clear();
  large_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& p = parameters_[i].tensor;
    const torch::Tensor& gradient = p.grad();
    present.push_back(gradient.defined() ? 1.0f : 0.0f);
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
  flags().copy_(torch::from_blob(present.data(), {static_cast<std::int64_t>(present.size())}));
  buffers_.push_back(tensor::buffer_of(flat_));
}

void GradientBucket::scatter() {
  const torch::NoGradGuard no_grad;
  const torch::Tensor shares = flags().to(torch::kFloat64);
  const double* share = shares.const_data_ptr<double>();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (share[i] == 0) {
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

comm::Request GradientBucket::request(double weight, double total_weight) const {
  return {.kind = comm::OperationKind::kAllReduce,
          .in = buffers_,
          .out = buffers_,
          .reduction = comm::ReduceOp::kWeightedAverage,
          .weight = weight,
          .total_weight = total_weight,
          .algorithm = algorithm_};
}

Status GradientBucket::reduce(double weight, double total_weight) {
  gather();
  STORMO_RETURN_IF_ERROR(world_.run(request(weight, total_weight), Deadline::never()));
  scatter();
  return {};
}

void GradientBucket::start(double weight, double total_weight) {
  gather();
  work_ = world_.submit(request(weight, total_weight));
}

Status GradientBucket::finish() {
  STORMO_RETURN_IF_ERROR(work_.wait());
  scatter();
  return {};
}

void GradientBucket::abandon() {
  (void)work_.wait();
  large_.clear();
}

}  // namespace stormo::train
