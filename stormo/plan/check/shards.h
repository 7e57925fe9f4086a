#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::plan {

/// Whether every sum of a plan with logical shards is one over their tree. Internal to check.
Status check_shards(const StepPlan& p);

}  // namespace stormo::plan
