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
/// Predicts steps of `ranks` ranks, with the links and times that the options name.
Result<comm::StepModel> step_model(const PlanOptions& o, int ranks);
/// What a step is of, as a line: its plan, ranks and sizes.
std::string heading(const StepInput& step);
/// Where times of computations come from, if not from a trace.
std::string origin_of_times(const PlanOptions& o, const StepInput& step);
/// `stormo plan cost` of a step: what it moves and what it holds.
Status step_cost(const PlanOptions& o, const StepInput& step);
/// `stormo plan simulate` of a step: a table, JSON or a picture of the timeline.
Status simulate_step(const PlanOptions& o, const StepInput& step);

}  // namespace stormo::cli
