#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// The values of which a step has one: the batch, the weights, which gradients are unused, and the
/// factor of the gradients: the norm, then the scale of the loss, then clipping, all before the
/// first update or push.
class StepValues {
 public:
  /// `plan` is borrowed.
  explicit StepValues(const plan::StepPlan& plan) : plan_(plan) {}

  /// The next action: kBadPlan if a value is missing, there already, or of no use.
  Status next(const plan::Action& a);
  /// A reduction of gradients that needs weights.
  Status use_weights();
  bool have(plan::Value value) const { return made_.has(value); }
  /// kBadPlan at the end of a step with weights for which there is no use.
  Status complete() const;
  /// A norm or an update: its axes are some on which the optimizer's state is cut. `all`: they are
  /// all of them.
  Status check_owners(const plan::Action& a, bool all) const;

 private:
  bool wanted(plan::Value value) const;

  const plan::StepPlan& plan_;
  plan::Values made_;
  bool updated_ = false, weights_used_ = false;
};

}  // namespace stormo::analysis
