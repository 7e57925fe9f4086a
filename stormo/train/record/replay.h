#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/server/ledger/shard_record.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// One step of a replay, when its gradient was computed.
struct ReplayedStep {
  int worker = 0;
  std::int64_t step = 0;  ///< of the worker, from 0
  std::int64_t samples = 0;
  double loss = 0;  ///< mean over the samples
};

/// Trains again as a run with parameter servers did: in one process and one thread, with all reads
/// and pushes in the recorded order. The outcome has the same bits, if the run computed with the
/// same number of threads on the same kind of processor. `events`: those of each worker, in its
/// order. `steps`: of the whole run. The module's values are the first ones, and afterwards the
/// last ones. Returns the number of gradients. kCorrupt if events are missing, or if the shards
/// decide otherwise than they did.
Result<std::int64_t> replay(const Task& task, const data::Dataset& data,
                            const TrainerOptions& options, std::int64_t steps,
                            std::span<const std::vector<server::ShardEvent>> events,
                            const std::function<void(const ReplayedStep&)>& on_step = {});

}  // namespace stormo::train
