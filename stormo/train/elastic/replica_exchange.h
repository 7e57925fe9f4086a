#pragma once

#include <cstdint>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/elastic/local_replica.h>
#include <stormo/train/optimizer/fused_optimizer.h>

namespace stormo::train {

// What ranks that train on by themselves give each other where an epoch begins. `optimizer` is that
// of this rank, of whole parameters.

/// A collective: what becomes of an average behind `step`, the last one of the epoch before.
/// Whoever has taken one has seen all of it; so where one has, all that have the state
/// (`has_state`) take the same, and the result is false. Where none has, nothing was changed: the
/// result is true, and they have to average anew. `with_state`: averages are of the optimizer's
/// state, too. After a failure this rank has what it had, or all of what it gets.
Result<bool> settle_average(comm::Communicator& world, FusedOptimizer& optimizer,
                            LocalReplica& replica, std::int64_t step, bool has_state,
                            bool with_state);

/// The whole state of this rank, for one that has none.
Status send_replica(comm::Communicator& world, FusedOptimizer& optimizer,
                    const LocalReplica& replica, Rank to);
/// Returns the bytes that have come.
Result<std::uint64_t> receive_replica(comm::Communicator& world, FusedOptimizer& optimizer,
                                      LocalReplica& replica, Rank from);

}  // namespace stormo::train
