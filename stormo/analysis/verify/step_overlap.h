#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// kBadPlan for a plan whose steps overlap (plan::Action::delay), if a rank would add gradients of
/// one batch to those of the batch before, which it has not used yet.
Status check_overlap(const plan::StepPlan& p);

}  // namespace stormo::analysis
