#pragma once

#include <functional>
#include <memory>
#include <span>

#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Replicas inside one process: calls body(world) for `n` ranks, each on a thread of its own, with
/// the Communicator of their group. DistributedDataParallel, FullyShardedDataParallel and Trainer
/// work there as they do on processes, with the same numbers.
///
///   std::vector<Net> nets = ...;  // one per replica
///   stormo::run_replicas(4, [&](stormo::comm::Communicator& world) {
///     auto& net = nets[world.rank()];
///     stormo::DistributedDataParallel ddp(world, net);
///     ...
///   });
///
/// Blocks until all have returned. An exception in one replica fails the group, so that the others
/// end too, and is rethrown here: the first one, with its type. `body` is called on several threads
/// at once. Intra-op threads are divided among them. libtorch's random generator is one for the
/// process: where draws must be reproducible, make models and batches before, and give dropout up.
///
/// Large tensors that a replica's thread makes lie in its rank's Arena, so that gradients are
/// reduced where autograd left them, as between processes. For one training, not for one step: each
/// call leaves 4 GiB of address space per replica behind (the memory touched in it stays too, since
/// tensors may outlive the group).
void run_replicas(int n, const std::function<void(comm::Communicator& world)>& body);

/// The same over a group that the caller has made, every rank of it in this process; the ranks
/// leave it well (Communicator::finalize).
void run_replicas(std::span<const std::unique_ptr<comm::Communicator>> group,
                  const std::function<void(comm::Communicator& world)>& body);

}  // namespace stormo::train

namespace stormo {
using train::run_replicas;
}  // namespace stormo
