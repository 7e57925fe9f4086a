#pragma once

#include <string>

#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// Inserts `action` for the parameters of each backward, behind the last backward that adds to
/// their gradients. O(actions * segments).
void insert_where_complete(plan::StepPlan& plan, const plan::Action& action);

/// Averages all gradients over the ranks of an axis, too: where they are complete, or together with
/// the averages over other axes that there are. O(actions * segments).
void average_gradients(plan::StepPlan& plan, const std::string& axis);

/// Averages all gradients over the ranks of a worker, the axis plan::kWorkerAxis, behind the last
/// backward. O(actions).
void average_in_worker(plan::StepPlan& plan);

}  // namespace stormo::parallel
