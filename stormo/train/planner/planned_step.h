#pragma once

#include <cstdint>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/selection/step_model.h>
#include <stormo/data/dataset.h>
#include <stormo/train/estimate/step_measurement.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// The step of `task` on hosts with that many ranks, where `can_share` says whether those of a host
/// may share parameters. `samples` of a micro-batch of one rank; 0: as the options say.
Result<comm::StepInput> planned_step(const TrainerOptions& options, const Task& task,
                                     const std::vector<int>& ranks_per_host,
                                     std::int64_t samples = 0, bool can_share = true);

/// Finds out what stages of a pipeline move, where the plan has some. Computes a forward.
void measure_moves(comm::StepInput& step, const Task& task, const data::Dataset& dataset);

/// Gives the step what was measured of its computations.
void take_measured(comm::StepInput& step, const StepMeasurement& measured);

/// The step in virtual time, with the overlap of backward and reductions that is the fastest there:
/// between hosts a training finds it by measurement. `step` has that plan afterwards.
Result<analysis::StepSimulation> simulated_as_trained(comm::StepModel& model,
                                                      const TrainerOptions& options,
                                                      comm::StepInput& step);

}  // namespace stormo::train
