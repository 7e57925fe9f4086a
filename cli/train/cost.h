#pragma once

#include <memory>

#include <cli/train/rank.h>
#include <stormo/launch/process/energy_counters.h>
#include <stormo/observe/cost.h>

namespace stormo::cli {

/// Measures what a run uses.
struct Cost {
  std::unique_ptr<launch::EnergyCounters> energy;
  std::unique_ptr<observe::CostMeter> meter;
};

/// --cost, --price: of a rank that reports. Goes on from what earlier starts of a resumed run have
/// left beside its checkpoints. Empty if it was not asked for.
Cost open_cost(const TrainRun& run);

}  // namespace stormo::cli
