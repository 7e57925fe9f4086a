#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// Whether no action of a plan makes workers of servers wait for each other; and whether only a
/// plan with servers exchanges with them. Actions that plan::check() has found right. kBadPlan.
Status check_workers(const plan::StepPlan& p);

}  // namespace stormo::analysis
