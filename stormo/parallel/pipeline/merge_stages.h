#pragma once

#include <vector>

#include <stormo/base/status.h>
#include <stormo/parallel/pipeline/pipeline_schedule.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// Appends to `plan` the computations and moves of all stages, in an order in which a computer
/// would do them that plays the schedule. `parts` are ranges of segments in the order of the model,
/// whose stages the plan knows. Where steps overlap, it also appends the updates of the stages.
/// kBadPlan for orders that are incomplete, or in which stages wait for each other.
Status merge_stages(const PipelineSchedule& schedule, const PipelineShape& shape,
                    const std::vector<plan::Range>& parts, plan::StepPlan& plan);

/// Appends an all_reduce_tied for each trainable parameter of the range that several stages read.
void all_reduce_tied(plan::StepPlan& plan, plan::Range parameters, int delay = 0);

}  // namespace stormo::parallel
