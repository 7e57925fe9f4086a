#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::plan {

/// That an action may combine gradients by Adasum: each rank has all of those of its own samples.
Status check_adasum(const StepPlan& p, const Action& a);

}  // namespace stormo::plan
