#include <stormo/train/reduction/gradient_bucket.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stormo/codec/codec.h>
#include <stormo/codec/momentum_correction.h>
#include <stormo/comm/codec/adaptive_sum.h>
#include <stormo/comm/codec/low_rank_sum.h>
#include <stormo/comm/codec/sum_of_codes.h>
#include <stormo/plan/adasum.h>
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

/// Null: they travel as they are, or in another type.
std::unique_ptr<comm::EncodedSum> encoded_sum(comm::Communicator& world,
                                              const analysis::Collective& sum) {
  if (sum.algorithm == plan::kAdasum) {
    return std::make_unique<comm::AdaptiveSum>(world, sum.gradients);
  }
  const CodecRow& row = row_of(sum.codec);
  if (!row.encodes()) return nullptr;
  if (row.has_factors()) {
    return std::make_unique<comm::LowRankSum>(world, sum.gradients, sum.codec.matrix_rank);
  }
  return std::make_unique<comm::SumOfCodes>(world, row, sum.elements, sum.codec.density,
                                            codec::momentum_correction_of(sum.algorithm));
}

}  // namespace

GradientBucket::GradientBucket(comm::Communicator& world, std::vector<NamedParameter> parameters,
                               analysis::Collective sum, std::optional<analysis::Collective> flags)
    : parameters_(std::move(parameters)),
      sum_(std::move(sum)),
      flags_(std::move(flags)),
      num_large_(sum_.in_place.size()),
      shares_(parameters_.size()),
      all_shares_(shares_) {
  throw_if_error(check(sum_, parameters_, flags_.has_value())
                     .within("gradients of '" + name() + "' and others"));
  const auto small = parameters_.begin() + static_cast<std::ptrdiff_t>(num_large_);
  auto offset = flags_ ? 0 : static_cast<std::int64_t>(parameters_.size());
  std::int64_t count = offset;
  for (auto p = small; p != parameters_.end(); ++p) count += p->tensor.numel();
  flat_ = flat_tensor(world, count, tensor::scalar_type_of(sum_.dtype),
                      parameters_.front().tensor.device());
  encoded_ = encoded_sum(world, sum_);
  for (auto p = small; p != parameters_.end(); ++p) {
    views_.push_back(flat_.narrow(0, offset, p->tensor.numel()).view(p->tensor.sizes()));
    offset += p->tensor.numel();
  }
  const comm::Buffer rest = tensor::buffer_of(flat_);
  for (std::size_t i = 0; i < num_large_; ++i) {
    buffers_.push_back(rest);
    buffers_.back().count = parameters_[i].tensor.numel();
  }
  if (rest.count > 0) buffers_.push_back(rest);
  if (flags_) {
    requests_.push_back(request_of(*flags_));
    requests_.back().in = requests_.back().out = {&all_shares_, 1};
  }
  requests_.push_back(request_of(sum_));
  requests_.back().in = requests_.back().out = buffers_;
  requests_.back().encoding = encoded_.get();
  if (encoded_ != nullptr) requests_.back().algorithm = {};  // it has operations of its own
}

torch::Tensor GradientBucket::flags() const {
  return flat_.narrow(0, 0, static_cast<std::int64_t>(parameters_.size()));
}

double GradientBucket::share(double weight, double total_weight) const {
  if (sum_.algorithm == plan::kAdasum) return weight > 0 ? 1 : 0;
  return total_weight > 0 ? weight / total_weight : 0;
}

std::span<const comm::Request> GradientBucket::gather(double weight, double total_weight) {
  const torch::NoGradGuard no_grad;
  // of a rank that computes nothing: a sum with -0 has the same bits, one with 0 turns -0 into 0
  const double missing = weight == 0 ? -0.0 : 0.0;
  large_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& p = parameters_[i].tensor;
    const torch::Tensor& gradient = p.grad();
    shares_[i] = gradient.defined() ? 1 : 0;
    if (i >= num_large_) {
      torch::Tensor& view = views_[i - num_large_];
      if (gradient.defined()) {
        view.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
      } else {
        view.fill_(missing);
      }
      continue;
    }
    if (!gradient.defined()) {
      large_.push_back(torch::full(p.sizes(), missing, p.options()));
    } else if (may_be_written(gradient) && gradient.is_contiguous()) {
      large_.push_back(gradient);
    } else {
      const torch::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
      large_.push_back(dense.clone(torch::MemoryFormat::Contiguous));
    }
    buffers_[i].data = large_.back().mutable_data_ptr();
  }
  if (!flags_) flags().copy_(torch::from_blob(shares_.data(), flags().sizes(), torch::kFloat64));
  if (encoded_ == nullptr) {
    for (comm::Request& request : requests_) {
      request.weight = weight;
      request.total_weight = total_weight;
    }
  } else {  // this rank's term of the average
    const double own = share(weight, total_weight);
    own > 0 ? flat_.mul_(own) : flat_.zero_();
    for (double& s : shares_) s *= own;
  }
  return requests_;
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

}  // namespace stormo::train
