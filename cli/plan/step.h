#pragma once

#include <cli/plan/options.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// `stormo plan cost` of a step: what it moves and what it holds.
Status step_cost(const PlanOptions& o, const StepInput& step);
/// `stormo plan simulate` of a step: a table, JSON or a picture of the timeline.
Status simulate_step(const PlanOptions& o, const StepInput& step);

}  // namespace stormo::cli
