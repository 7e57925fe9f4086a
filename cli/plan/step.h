#pragma once

#include <cli/plan/options.h>
#include <cstdint>
#include <string>

#include <stormo/base/status.h>

namespace stormo::cli {

/// Refuses, with figures, a step for which a host that has `ranks_here` of its ranks lacks memory.
/// Activations count where they are known. kExhausted.
Status check_fits(const StepInput& step, int ranks_here, std::uint64_t available_bytes);
/// Whether the plan or a measurement says how much its segments compute.
bool computes_known(const StepInput& step);
/// What it moves, holds and takes, as `stormo plan cost --json`; with "seconds" where it is known
/// how much segments compute.
Result<std::string> step_figures(const PlanOptions& o, const StepInput& step);
/// One step as `stormo plan simulate` plays it, without a timeline.
Result<analysis::StepSimulation> simulated(const PlanOptions& o, const StepInput& step);
/// The same if nothing that ranks exchange took any time.
Result<analysis::StepSimulation> simulated_without_communication(const PlanOptions& o,
                                                                 const StepInput& step);
/// `stormo plan cost` of a step: what it moves and what it holds.
Status step_cost(const PlanOptions& o, const StepInput& step);
/// `stormo plan simulate` of a step: a table, JSON or a picture of the timeline.
Status simulate_step(const PlanOptions& o, const StepInput& step);

}  // namespace stormo::cli
