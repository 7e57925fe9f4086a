#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <stormo/checkpoint/piece.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/state/safetensors.h>

namespace stormo::train {

/// Where a loop of one's own is.
struct Progress {
  std::int64_t step = 0;     ///< done
  std::int64_t samples = 0;  ///< used over all ranks: the cursor of a data::Sampler
  std::int64_t epoch = 0;
  bool operator==(const Progress&) const = default;
};

struct RunCheckpointOptions {
  std::string name = "program";  ///< appears in the manifest
  int keep = 2;                  ///< newest checkpoints that stay
  bool overwrite = false;        ///< begin anew where the folder has checkpoints
};

/// Model, optimizer and position of a loop of one's own, whose ranks hold replicas (as with
/// DistributedDataParallel): one call restores them, one call saves them.
///
///   train::RunCheckpoint checkpoint(world, *net, optimizer, "runs/mine");
///   train::Progress at = checkpoint.restore();
///   while (at.step < steps) {
///     ...
///     if (++at.step % 100 == 0) checkpoint.save(at);
///   }
///
/// A folder belongs to one run (docs/checkpoints.md). All calls are collectives and throw Error on
/// every rank.
class RunCheckpoint {
 public:
  /// All are borrowed. The state of an optimizer of torch::optim is what its own save() writes.
  RunCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                torch::optim::Optimizer& optimizer, std::string directory,
                RunCheckpointOptions options = {});
  RunCheckpoint(comm::Communicator& world, torch::nn::Module& module, Optimizer& optimizer,
                std::string directory, RunCheckpointOptions options = {});

  /// Every rank gets the state of the newest checkpoint, any number of ranks what any other number
  /// saved. Where there is none, or with `overwrite`, nothing is changed and the progress is 0.
  Progress restore();
  /// Writes a checkpoint and returns its path when it is on the disk. Buffers, which may differ
  /// between ranks, are rank 0's. A run that has not called restore() begins here: then a folder
  /// that has checkpoints is refused, unless `overwrite`. After a failure the older checkpoints are
  /// as they were, and the next call tries again.
  std::string save(const Progress& progress);

 private:
  RunCheckpoint(comm::Communicator& world, torch::nn::Module& module, std::string directory,
                RunCheckpointOptions options);
  Status load(const std::string& path, TensorMap& optimizer, Progress& progress);
  Result<checkpoint::Snapshot> snapshot(const Progress& progress);

  comm::Communicator& world_;
  torch::nn::Module& module_;
  std::string directory_;
  RunCheckpointOptions options_;
  std::function<TensorMap()> optimizer_state_;
  std::function<Status(const TensorMap&)> load_optimizer_;
  checkpoint::RunIdentity run_;  // on rank 0; without id: not begun
};

}  // namespace stormo::train
