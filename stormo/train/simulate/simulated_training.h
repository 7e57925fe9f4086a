#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/protocol/server/virtual_servers.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// Training with parameter servers, or with averages, in virtual time: one process computes the
/// gradients of all workers, one after the other, and what happens to them is done by the code of a
/// real run.
struct SimulatedTraining {
  protocol::VirtualOutcome outcome;
  struct Step {
    Duration at{};  ///< virtual time, when it was computed
    int worker = 0;
    std::int64_t samples = 0;
    double loss = 0;  ///< mean over the samples, before its update
  };
  std::vector<Step> steps;  ///< in the order of virtual time
  /// When a loss was not finite, which ended the simulation.
  std::optional<Duration> diverged;
};

/// Trains with options.strategy (parameter_averaging, elastic_averaging, or else parameter_server),
/// options.servers, options.optimizer and options.clip_norm; a worker has options.global_batch /
/// workers samples per step and cluster.steps steps. The module's values are the first ones, and
/// afterwards the last ones. Of `cluster` the number of servers, and how often workers exchange
/// with them, are those of the options. `on_step` is called after every computed gradient.
/// kInvalidArgument for parameters that servers cannot hold; exceptions of the task pass through.
Result<SimulatedTraining> simulate_training(
    const Task& task, const data::Dataset& data, const TrainerOptions& options,
    protocol::VirtualCluster cluster,
    const std::function<void(const SimulatedTraining::Step&)>& on_step = {});

/// kInvalidArgument for ways of training that are not simulated.
Status check_simulated(const TrainerOptions& options);

}  // namespace stormo::train
