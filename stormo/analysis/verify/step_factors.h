#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// The order of the actions that find the factor of a step's gradients: the norm, then the scale of
/// the loss, then clipping, all before the first update or push. Each function takes the next
/// action of its kind and returns kBadPlan where it is out of order.
class GradientFactors {
 public:
  /// `plan` is borrowed.
  explicit GradientFactors(const plan::StepPlan& plan) : plan_(plan) {}

  Status norm();
  Status unscale();
  Status clip();
  /// An update or push: kBadPlan if a factor is missing.
  Status update();
  /// A norm or an update: its axes are some on which the optimizer's state is cut. `all`: they are
  /// all of them.
  Status check_owners(const plan::Action& a, bool all) const;

 private:
  Status before_updates() const;

  const plan::StepPlan& plan_;
  bool norm_ = false, unscaled_ = false, clipped_ = false, updated_ = false;
};

}  // namespace stormo::analysis
