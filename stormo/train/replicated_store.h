#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/plan/step_plan.h>
#include <stormo/train/axis_groups.h>
#include <stormo/train/backward_reducer.h>
#include <stormo/train/parameter_store.h>

namespace stormo::train {

/// Whole parameters and optimizer state on every rank, kept equal by equal averaged gradients.
class ReplicatedStore final : public ParameterStore {
 public:
  /// `plan` says what is reduced. One range alone may overlap with backward; several are reduced
  /// one by one. `groups` is borrowed.
  ReplicatedStore(const AxisGroups& groups, std::unique_ptr<Optimizer> optimizer,
                  const plan::StepPlan& plan, Reduction how);

  Status check(const plan::StepPlan& plan) const override;
  void begin_pass(double weight, bool last) override;
  Status perform(const plan::Action& action, double weight) override;
  Result<double> gradient_norm() override;
  Status update(const ParameterRange& range, const StepRate& rate) override;
  Optimizer& optimizer() override { return *optimizer_; }
  std::string describe() const override;

 private:
  struct Part {
    plan::Range reduced;   // as the plan counts
    ParameterRange range;  // of the optimizer's
    std::unique_ptr<BackwardReducer> reducer;
  };

  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Part> parts_;
};

}  // namespace stormo::train
