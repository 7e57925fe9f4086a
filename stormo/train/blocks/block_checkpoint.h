#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/base/status.h>
#include <stormo/checkpoint/file/run_lock.h>
#include <stormo/checkpoint/format/run_identity.h>
#include <stormo/comm/communicator.h>
#include <stormo/protocol/strads/scheduler.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// What a training by blocks goes on from, beside the parameters. No round is in flight.
struct BlockState {
  protocol::ScheduleState schedule;
  std::int64_t samples = 0;                          ///< used, over all workers
  std::int64_t updates = 0;                          ///< of blocks
  std::uint64_t order_hash = 0;                      ///< see strads::RoundsRun
  std::vector<protocol::Conflicts::Pair> conflicts;  ///< all pairs
  bool operator==(const BlockState&) const = default;
};

/// Checkpoints of a training by blocks, in the format of all checkpoints (docs/checkpoints.md):
/// what reads those of `stormo train` reads these. Weights of blocks, conflicts and counts are
/// tensors "optimizer.blocks.*". Rank 0 writes all of it; others need not see the folder.
class BlockCheckpoint {
 public:
  /// `world`, `module` and `options` are borrowed. `schedule`: how blocks are cut and chosen; a run
  /// goes on only with the same text.
  BlockCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                  const TrainerOptions& options, std::string schedule);

  /// A collective; call once. Begins a run in the folder, or, with options.resume, gives the module
  /// the values of the newest checkpoint on every rank, and returns the state. Locks the folder
  /// until this is destroyed. kInvalidArgument for a folder of another run, and for a checkpoint
  /// that training by blocks has not written, or with another schedule.
  Result<std::optional<BlockState>> begin();
  /// A collective: the path of a checkpoint; blocks until it is on the disk.
  Result<std::string> save(const BlockState& state);
  /// OK if a run with this schedule can go on in the folder: what begin() checks. Reads the
  /// manifest of the newest checkpoint.
  static Status check(const std::string& directory, const std::string& schedule);

 private:
  Status begin_on_rank_0();
  Status load(BlockState& state);

  comm::Communicator& world_;
  torch::nn::Module& module_;
  const TrainerOptions& options_;
  std::string schedule_;
  checkpoint::RunLock lock_;
  checkpoint::RunIdentity run_;  // on rank 0
};

}  // namespace stormo::train
