#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <stormo/train/optimizer/frozen_adam.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/reduction/gradient_reducer.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// Whole parameters and optimizer state on every rank, kept equal by equal averaged gradients.
class ReplicatedStore final : public ParameterStore {
 public:
  /// `groups` is borrowed.
  ReplicatedStore(const AxisGroups& groups, std::unique_ptr<Optimizer> optimizer);

  /// Of Adam and AdamW, before there is a plan: a parameter that has had so many updates has those
  /// of FrozenAdam.
  void freeze_after(std::int64_t updates);

  void set_plan(const plan::StepPlan& plan) override;
  void begin_backward(bool last) override;
  Status perform(const plan::Action& action, double weight) override;
  Result<double> gradient_norm() override;
  Status update(const ParameterRange& range, const StepRate& rate) override;
  void zero_grad() override;
  Optimizer& optimizer() override { return *optimizer_; }
  TensorMap residuals() const override { return replicas_ ? replicas_->residuals() : TensorMap(); }
  void keep_residuals(TensorMap kept) override { kept_ = std::move(kept); }
  Status finish_gradients() override { return replicas_ ? replicas_->finish() : Status(); }
  std::unique_ptr<Optimizer> take_optimizer() override;

 private:
  Status update_here(const ParameterRange& range, const StepRate& rate);

  const AxisGroups& groups_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<FrozenAdam> frozen_;         // null: all updates are the optimizer's
  comm::Communicator* ranks_ = nullptr;        // of the reductions
  std::unique_ptr<GradientReducer> replicas_;  // null: the plan reduces nothing
  TensorMap kept_;                             // residuals for `replicas_`
  bool sums_norms_ = false;                    // an update is a collective
};

}  // namespace stormo::train
