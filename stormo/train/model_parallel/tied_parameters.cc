// What a ModelParallelStore does with parameters that several ranks of a replica have: several
// stages of a pipeline read them, or ranks that compute layers together do not split them.
#include <chrono>
#include <string>

#include <stormo/train/model_parallel/model_parallel_store.h>

namespace stormo::train {
namespace {

/// Keys of tied gradients and of tied values; those of moves are below.
constexpr StageLink::Key kTied = StageLink::Key{1} << 63;
constexpr StageLink::Key kTiedValues = kTied | StageLink::Key{1} << 62;

}  // namespace

// All stages cut such a parameter alike, so a rank has the same part of it as its counterparts.
Status ModelParallelStore::all_reduce_tied(Parameter& p) {
  const torch::NoGradGuard no_grad;
  if (shards_ != nullptr) {
    torch::Tensor* const part = shards_->gradient_of(p.named.name);
    return part != nullptr ? sum_over_stages(p, *part) : Status();
  }
  torch::Tensor& gradient = p.named.tensor.mutable_grad();
  if (!gradient.defined()) gradient = torch::zeros_like(p.named.tensor);
  return sum_over_stages(p, gradient);
}

// The owner adds up the terms in the order of stages, and gives every stage the sum.
Status ModelParallelStore::sum_over_stages(const Parameter& p, torch::Tensor& gradient) {
  const StageLink::Key key = kTied | static_cast<StageLink::Key>(&p - parameters_.data());
  const torch::IntArrayRef like = gradient.sizes();
  const int owner = p.stages.front();
  if (!is_own(p)) {
    STORMO_RETURN_IF_ERROR(link_->send(owner, key, gradient, like));
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor sum, receive_tied(owner, key, like));
    gradient.copy_(sum);
    return {};
  }
  for (const int stage : p.stages) {
    if (stage == owner) continue;
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor term, receive_tied(stage, key, like));
    gradient.add_(term);
  }
  for (const int stage : p.stages) {
    if (stage != owner) STORMO_RETURN_IF_ERROR(link_->send(stage, key, gradient, like));
  }
  return {};
}

Status ModelParallelStore::give_whole_values() {
  if (served_ == nullptr || !split_) return {};
  take_slices();
  std::vector<comm::Buffer> values;
  for (const Parameter& p : parameters_) {
    const torch::Tensor& own = p.named.tensor;
    const auto bytes = static_cast<std::int64_t>(own.nbytes());
    if (!is_own(p) || p.slice.defined() || !own.requires_grad() || bytes == 0) continue;
    values.push_back({own.detach().mutable_data_ptr(), bytes, DType::kUInt8});
  }
  return values.empty() ? Status() : tensor_->broadcast(values, 0);
}

// The owner's values stay as they are until its next pull, in the next step.
Status ModelParallelStore::give_tied_values() {
  const torch::NoGradGuard no_grad;
  for (Parameter& p : parameters_) {
    torch::Tensor& values = p.named.tensor;
    if (p.stages.size() == 1 || !has(p) || !values.requires_grad()) continue;
    const StageLink::Key key = kTiedValues | static_cast<StageLink::Key>(&p - parameters_.data());
    if (!is_own(p)) {
      STORMO_ASSIGN_OR_RETURN(const torch::Tensor owned,
                              receive_tied(p.stages.front(), key, values.sizes()));
      values.copy_(owned);
      continue;
    }
    for (const int stage : p.stages) {
      if (stage == p.stages.front()) continue;
      STORMO_RETURN_IF_ERROR(link_->send(stage, key, values.detach(), values.sizes()));
    }
  }
  return {};
}

// Waits until the other stage has finished its backwards, as for what is moved between stages.
Result<torch::Tensor> ModelParallelStore::receive_tied(int stage, StageLink::Key key,
                                                       torch::IntArrayRef like) {
  const TimePoint begun = std::chrono::steady_clock::now();
  STORMO_RETURN_IF_ERROR(link_->expect(stage, key, like));
  STORMO_ASSIGN_OR_RETURN(torch::Tensor tensor, link_->receive(stage, key));
  if (sink() != nullptr) {
    sink()->record({.lane = Lane::kWait,
                    .name = to_string(plan::ActionKind::kAllReduceTied),
                    .start = begun,
                    .end = std::chrono::steady_clock::now()});
  }
  return tensor;
}

}  // namespace stormo::train
