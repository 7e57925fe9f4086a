#pragma once

#include <string>

#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// Averages all gradients over the ranks of an axis, too: where they are complete, or together with
/// the averages over other axes that there are. O(actions * segments).
void average_gradients(plan::StepPlan& plan, const std::string& axis);

}  // namespace stormo::parallel
