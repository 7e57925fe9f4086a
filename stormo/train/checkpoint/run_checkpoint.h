#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <stormo/checkpoint/format/piece.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/sharding/fully_sharded_data_parallel.h>

namespace stormo::train {

class LoopState;

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

/// Saves and restores model, optimizer and position of a user's own loop, whose ranks hold replicas
/// (as with DistributedDataParallel) or shards (FullyShardedDataParallel).
///
///   train::RunCheckpoint checkpoint(world, *net, optimizer, "runs/mine");
///   train::TrainingPosition at = checkpoint.restore();
///   while (at.step < steps) {
///     ...
///     if (++at.step % 100 == 0) checkpoint.save(at);
///   }
///   checkpoint.save(at);
///   checkpoint.export_model("model.safetensors");
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

  /// `optimizer` is of fsdp.make_optimizer(). Every rank reads and writes its own parts, so all of
  /// them must be able to reach `directory` under this name. A checkpoint of replicas with a
  /// FusedOptimizer can be restored here, and the other way round.
  RunCheckpoint(comm::Communicator& world, FullyShardedDataParallel& fsdp,
                FusedOptimizer& optimizer, std::string directory,
                RunCheckpointOptions options = {});
  RunCheckpoint(RunCheckpoint&&) noexcept;
  ~RunCheckpoint();

  /// Restores the newest checkpoint on every rank; the number of ranks may differ from the one that
  /// saved it. If there is none, or with `overwrite`, nothing is changed and the progress is 0.
  TrainingPosition restore();
  /// Writes a checkpoint; blocks until it is on the disk, and returns its path. Buffers, which may
  /// differ between ranks, are those of rank 0. Without a call of restore() before it, this starts
  /// a new run: a folder that has checkpoints is then refused, unless `overwrite`. A failure does
  /// not affect older checkpoints, and the next call tries again.
  std::string save(const TrainingPosition& progress);
  /// Writes the model as it was last saved or restored as one safetensors file, for Python; blocks.
  /// Rank 0 reads the checkpoint, of which it needs only a little in memory at a time.
  void export_model(const std::string& file);

 private:
  RunCheckpoint(comm::Communicator& world, std::unique_ptr<LoopState> state, std::string directory,
                RunCheckpointOptions options);
  static Status read_position(const std::string& path, TrainingPosition& progress,
                              checkpoint::RunIdentity& run);
  Result<checkpoint::Snapshot> snapshot(const TrainingPosition& progress);

  comm::Communicator& world_;
  std::unique_ptr<LoopState> state_;
  std::string directory_;
  RunCheckpointOptions options_;
  std::string last_;             // the checkpoint that was saved or restored last
  checkpoint::RunIdentity run_;  // on rank 0; without id: not begun
};

}  // namespace stormo::train
