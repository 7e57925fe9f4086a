#pragma once

#include <string>

#include <stormo/base/status.h>
#include <stormo/checkpoint/piece.h>
#include <stormo/comm/communicator.h>

namespace stormo::checkpoint {

/// Writes a checkpoint of all ranks' pieces and returns its path, on every rank. A collective; a
/// failure of any rank is the outcome on all of them, names the rank, and leaves what was there
/// before.
///
///   directory/step-00000100/{shard-00000.safetensors, ..., manifest.json}   directory/latest
///
/// Every rank that has pieces writes one shard, into a folder under a staging name; rank 0 checks
/// that all pieces together cover every tensor exactly once, writes the manifest and publishes the
/// folder by one rename. Then complete checkpoints of this run beyond its newest `keep` go, and
/// those of runs that it replaces; with a checkpoint of any other run in `directory` the save
/// fails. All ranks with pieces must see the same `directory`: a rank that does not is found and
/// named. A rank that could not make its snapshot passes the failure.
///
/// Blocks until everything is on the disk. Cost: the bytes of the largest shard, written once, and
/// a few short messages.
Result<std::string> save_checkpoint(comm::Communicator& world, const std::string& directory,
                                    const Result<Snapshot>& snapshot, int keep);

}  // namespace stormo::checkpoint
