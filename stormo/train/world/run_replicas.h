#pragma once

#include <functional>
#include <memory>
#include <span>

#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Replicas inside one process: calls body(world) for `n` ranks, each on a thread of its own, with
/// the Communicator of their group. DistributedDataParallel, FullyShardedDataParallel and Trainer
/// work as with processes, and give the same results.
///
///   std::vector<Net> nets = ...;  // one per replica
///   stormo::run_replicas(4, [&](stormo::comm::Communicator& world) {
///     auto& net = nets[world.rank()];
///     stormo::DistributedDataParallel ddp(world, net);
///     ...
///   });
///
/// Blocks until all have returned. An exception in one replica makes the group fail, so that the
/// others end too; the first exception is rethrown with its type. `body` runs on several threads at
/// the same time. Intra-op threads are divided among them. libtorch has one random generator per
/// process: for reproducible results make models and batches before, and do not use dropout.
///
/// Large tensors of a replica's thread are allocated in its rank's Arena, so that gradients are
/// reduced in place, as between processes. Call it once for a training, not for each step: each
/// call uses 4 GiB of address space per replica, which is not freed (nor is the memory used in it,
/// since tensors may outlive the group).
void run_replicas(int n, const std::function<void(comm::Communicator& world)>& body);

/// The same with a group that the caller has made, with every rank in this process; the ranks leave
/// it by Communicator::finalize.
void run_replicas(std::span<const std::unique_ptr<comm::Communicator>> group,
                  const std::function<void(comm::Communicator& world)>& body);

}  // namespace stormo::train

namespace stormo {
using train::run_replicas;
}  // namespace stormo
