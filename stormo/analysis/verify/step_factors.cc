#include <stormo/analysis/verify/step_factors.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <stormo/plan/bad_plan.h>

namespace stormo::analysis {
namespace {

using plan::bad;

Status once(bool& done, const char* again) {
  return std::exchange(done, true) ? bad(again) : Status();
}

}  // namespace

Status GradientFactors::before_updates() const {
  if (!updated_) return {};
  return bad(std::string("comes after ") + (is_remote(plan_) ? "a push" : "an update"));
}

Status GradientFactors::norm() {
  STORMO_RETURN_IF_ERROR(before_updates());
  if (!plan_.scaled_loss && !plan_.clipped) return bad("computes a norm that nothing needs");
  return once(norm_, "computes the norm a second time");
}

Status GradientFactors::unscale() {
  STORMO_RETURN_IF_ERROR(before_updates());
  if (!plan_.scaled_loss) return bad("finds no scale of the loss");
  if (!norm_) return bad("comes before the norm");
  if (clipped_) return bad("comes after the norm was clipped");
  return once(unscaled_, "undoes the scale of the loss a second time");
}

Status GradientFactors::clip() {
  STORMO_RETURN_IF_ERROR(before_updates());
  if (!plan_.clipped) return bad("clips, but the step says nothing of it");
  if (!norm_) return bad("comes before the norm");
  if (plan_.scaled_loss && !unscaled_) return bad("comes before the scale of the loss is undone");
  return once(clipped_, "clips a second time");
}

Status GradientFactors::update() {
  if (plan_.scaled_loss && !unscaled_) return bad("comes before the scale of the loss is undone");
  if (plan_.clipped && !clipped_) return bad("comes before the gradients are clipped");
  updated_ = true;
  return {};
}

Status GradientFactors::check_owners(const plan::Action& a, bool all) const {
  for (std::size_t axis = 0; axis < plan_.mesh.axes.size(); ++axis) {
    const plan::Axis& of = plan_.mesh.axes[axis];
    const plan::Placement placed = plan_.optimizer_state[axis];
    // a stage has whole parameters, but not all of them
    const bool part = placed == plan::Placement::kShard || placed == plan::Placement::kSplit;
    const bool cut = part || (all && placed == plan::Placement::kStaged);
    const bool named = std::ranges::count(a.axes, of.name) > 0;
    if (named && !cut) return bad("adds up what all ranks of " + of.name + " have");
    const bool adds_up = all || !a.axes.empty();  // an update may need no sums
    if (adds_up && cut && !named && of.size > 1) {
      return bad("leaves out the parts of other ranks of " + of.name);
    }
  }
  return {};
}

}  // namespace stormo::analysis
