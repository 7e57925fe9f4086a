#pragma once

#include <functional>

#include <cli/train/rank.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// The evaluator of a cluster: evaluates each new checkpoint in the recipe's folder, which must be
/// on a file system that it shares with the first worker. Blocks until it has evaluated that of the
/// last step, or the last one of a run that is over; or until `stop_fd` becomes readable: then
/// kInterrupted. `is_over` is asked now and then, with whether a checkpoint has come since the
/// begin, and does not block. kPeerLost when the run is over and there is no checkpoint.
Status evaluate_checkpoints(const TrainRun& run, const std::function<bool(bool began)>& is_over,
                            int stop_fd);

}  // namespace stormo::cli
