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

/// The position of a user's own training loop.
struct TrainingPosition {
  std::int64_t step = 0;     ///< done
  std::int64_t samples = 0;  ///< used over all ranks: the position of a data::Sampler
  std::int64_t epoch = 0;
  bool operator==(const TrainingPosition&) const = default;
};

struct RunCheckpointOptions {
  std::string name = "program";  ///< appears in the manifest
  int keep = 2;                  ///< number of newest checkpoints to keep
  bool overwrite = false;        ///< start a new run although the folder has checkpoints
};

/// Saves and restores model, optimizer and position of a user's own loop whose ranks hold replicas
/// (as with DistributedDataParallel).
///
///   train::RunCheckpoint checkpoint(world, *net, optimizer, "runs/mine");
///   train::TrainingPosition at = checkpoint.restore();
///   while (at.step < steps) {
///     ...
///     if (++at.step % 100 == 0) checkpoint.save(at);
///   }
///
/// A folder belongs to one run (docs/checkpoints.md). All calls are collectives and throw Error on
/// every rank.
class RunCheckpoint {
 public:
  /// Arguments are borrowed. The state of an optimizer of torch::optim is saved as the archive of
  /// its own save().
  RunCheckpoint(comm::Communicator& world, torch::nn::Module& module,
                torch::optim::Optimizer& optimizer, std::string directory,
                RunCheckpointOptions options = {});
  RunCheckpoint(comm::Communicator& world, torch::nn::Module& module, Optimizer& optimizer,
                std::string directory, RunCheckpointOptions options = {});

  /// Restores the newest checkpoint on every rank; the number of ranks may differ from the one that
  /// saved it. If there is none, or with `overwrite`, nothing is changed and the progress is 0.
  TrainingPosition restore();
  /// Writes a checkpoint; blocks until it is on the disk, and returns its path. Buffers, which may
  /// differ between ranks, are those of rank 0. Without a call of restore() before it, this starts
  /// a new run: a folder that has checkpoints is then refused, unless `overwrite`. A failure does
  /// not affect older checkpoints, and the next call tries again.
  std::string save(const TrainingPosition& progress);

 private:
  RunCheckpoint(comm::Communicator& world, torch::nn::Module& module, std::string directory,
                RunCheckpointOptions options);
  Status load(const std::string& path, TensorMap& optimizer, TrainingPosition& progress);
  Result<checkpoint::Snapshot> snapshot(const TrainingPosition& progress);

  comm::Communicator& world_;
  torch::nn::Module& module_;
  std::string directory_;
  RunCheckpointOptions options_;
  std::function<TensorMap()> optimizer_state_;
  std::function<Status(const TensorMap&)> load_optimizer_;
  checkpoint::RunIdentity run_;  // on rank 0; without id: not begun
};

}  // namespace stormo::train
