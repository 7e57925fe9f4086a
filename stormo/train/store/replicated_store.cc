#include <stormo/train/store/replicated_store.h>

#include <algorithm>
#include <utility>

namespace stormo::train {
ReplicatedStore::ReplicatedStore(const AxisGroups& groups, std::unique_ptr<Optimizer> optimizer)
    : groups_(groups), optimizer_(std::move(optimizer)) {}

void ReplicatedStore::freeze_after(std::int64_t updates) {
  frozen_ = std::make_unique<FrozenAdam>(dynamic_cast<FusedOptimizer&>(*optimizer_), updates);
}

void ReplicatedStore::set_plan(const plan::StepPlan& plan) {
  sums_norms_ = std::ranges::any_of(plan.actions, [](const plan::Action& a) {
    return makes(a, plan::Value::kUpdated) && !a.axes.empty();
  });
  const plan::Action* first = first_reduction(plan);
  if (first == nullptr) {
    replicas_.reset();
    return;
  }
  comm::Communicator& ranks = *groups_.over(first->axes).take_or_throw();
  if (std::exchange(ranks_, &ranks) != &ranks) {
    replicas_ = std::make_unique<GradientReducer>(ranks, optimizer_->parameters());
    replicas_->on_done([this](const plan::Action& a) { done(a); });
    if (frozen_) {
      replicas_->prepare_with(
          [this](const ParameterRange& r) { frozen_->prepare_gradients(r.first, r.last); });
    }
    replicas_->keep_residuals(std::exchange(kept_, {}));
  }
  replicas_->set_plan(plan);
  replicas_->observe_backward();
}

void ReplicatedStore::begin_backward(bool last) {
  if (replicas_) replicas_->begin_backward(last);
}

Status ReplicatedStore::perform(const plan::Action& action, double weight) {
  replicas_->set_weight(weight);
  return replicas_->perform(action);
}

std::unique_ptr<Optimizer> ReplicatedStore::take_optimizer() {
  replicas_.reset();
  frozen_.reset();
  return std::move(optimizer_);
}

Result<double> ReplicatedStore::gradient_norm() {
  STORMO_RETURN_IF_ERROR(finish_gradients());
  return optimizer_->gradient_norm();
}

// Some are updated while the gradients of others travel, unless all norms are summed in one go.
Status ReplicatedStore::update(const ParameterRange& range, const StepRate& rate) {
  if (sums_norms_) STORMO_RETURN_IF_ERROR(finish_gradients());
  if (!replicas_ && frozen_) frozen_->prepare_gradients(range.first, range.last);
  if (!replicas_ || sums_norms_) return update_here(range, rate);
  return replicas_->finish(
      range, [&](const ParameterRange& averaged) { return update_here(averaged, rate); });
}

Status ReplicatedStore::update_here(const ParameterRange& range, const StepRate& rate) {
  return frozen_ ? frozen_->step(rate, range.first, range.last)
                 : optimizer_->step(rate, range.first, range.last);
}

void ReplicatedStore::zero_grad() {
  if (replicas_) replicas_->next_pass();
  optimizer_->zero_grad();
}

}  // namespace stormo::train
