#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/train/estimate/step_measurement.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// The ranks of a host that compute at the same time.
struct RanksOfHost {
  int ranks = 1;
  int threads = 1;  ///< intra-op, of each
};

/// A step that is to be measured.
struct Wanted {
  TrainerOptions options;
  std::int64_t samples = 1;
  bool in_parts = false;  ///< see MeasureOptions
};

/// measure_step() of each of `wanted` in this process, as one of several ranks, in turns; all of
/// them take part in each of the `rounds`. The medians count; with several threads the shortest
/// times, as other processes may use the machine. `memory`: of this rank. `meet` waits for the
/// others.
Result<std::vector<StepMeasurement>> measure_rounds(const Task& task, const data::Dataset& dataset,
                                                    const std::vector<Wanted>& wanted,
                                                    std::int64_t memory, int rounds,
                                                    const std::function<void()>& meet);

/// measure_rounds() of `wanted`, as one of `host.ranks` ranks that compute the same at the
/// same time, on cores as a job has them: ranks slow each other where they share caches, memory, or
/// parts of cores. Rounds go on for a second or more, unless one takes long, as the speed of memory
/// may change from one to the next. Means over the ranks.
/// `memory`: of all of them. The ranks are forks, see at_once(); nothing changes in this process.
Result<std::vector<StepMeasurement>> measure_together(const RanksOfHost& host, const Task& task,
                                                      const data::Dataset& dataset,
                                                      const std::vector<Wanted>& wanted,
                                                      std::int64_t memory);

}  // namespace stormo::train
