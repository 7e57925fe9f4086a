#pragma once

#include <string>

#include <stormo/base/status.h>
#include <stormo/checkpoint/format/piece.h>
#include <stormo/comm/communicator.h>

namespace stormo::checkpoint {

/// A collective: writes a checkpoint of all ranks' pieces and returns its path on every rank. A
/// failure of any rank is returned on all ranks, with the name of the rank, and does not affect
/// older checkpoints.
///
///   directory/step-00000100/{shard-00000.safetensors, ..., manifest.json}   directory/latest
///
/// Every rank with pieces writes one shard into a staging folder. Rank 0 checks that all pieces
/// together cover every tensor exactly once, writes the manifest and gives the folder its final
/// name by one rename. Then complete checkpoints of this run except its newest `keep` are removed,
/// and those of runs that it replaces. If `directory` has a checkpoint of any other run, the save
/// fails. All ranks with pieces must access the same `directory`; the failure names a rank that
/// does not. A rank that could not make its snapshot passes the failure.
///
/// Blocks until everything is on the disk. Cost: the bytes of the largest shard, written once, and
/// a few short messages.
Result<std::string> save_checkpoint(comm::Communicator& world, const std::string& directory,
                                    const Result<Snapshot>& snapshot, int keep);

}  // namespace stormo::checkpoint
