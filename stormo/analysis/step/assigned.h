#pragma once

#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/plan/assigned/assigned_plan.h>

// Of a verified step whose actions are assigned to ranks: what it sends, holds, and how long it
// takes. Lost ranks count as ranks that do nothing: `ranks_per_host` has them.
namespace stormo::analysis {

/// By rank, as cost(): O(assigned actions), besides `traffic_of`, which is asked for each
/// collective of each group.
Result<std::vector<Traffic>> traffic(const plan::AssignedPlan& assigned,
                                     const std::vector<int>& ranks_per_host, const StepSizes& sizes,
                                     const TrafficOf& traffic_of);

/// As memory(), on the rank that holds the most.
StepMemory memory(const plan::AssignedPlan& assigned, const MemorySizes& sizes);

/// As simulate(): with nobody lost it takes as long. A rank loads of each batch the share that it
/// computes. Of a micro-batch that travels by way of peers each move is between the two ranks that
/// compute it.
Result<StepSimulation> simulate(const plan::AssignedPlan& assigned,
                                const std::vector<int>& ranks_per_host, const StepSizes& sizes,
                                const StepTimes& times, Timeline timeline = Timeline::kKeep);

}  // namespace stormo::analysis
