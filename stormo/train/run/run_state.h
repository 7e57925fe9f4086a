#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <torch/nn/module.h>

#include <stormo/base/status.h>
#include <stormo/checkpoint/async.h>
#include <stormo/checkpoint/run_lock.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/options.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/run/best_score.h>

namespace stormo::train {

/// What a run would need to go on after a stop: weights, optimizer state, progress. What every rank
/// holds is read by rank 0 and written by the ranks of its host; parts are read and written by
/// those who own them, in a folder that all of them see.
class RunState {
 public:
  /// All are borrowed.
  RunState(comm::Communicator& world, torch::nn::Module& module, const TrainerOptions& options);

  /// Gives every rank the weights of rank 0 or, with options.resume, those of the newest checkpoint
  /// and its progress. Without, a directory that has checkpoints is refused, unless
  /// options.overwrite; so is one that another run writes into. A collective.
  Status start();
  /// Takes over the store that was made of these weights, and the scale of the loss, if there is
  /// one; with options.resume they get the checkpoint's state. Borrowed. A collective.
  Status attach(ParameterStore& store, GradScaler* scaler = nullptr);
  /// Writes a checkpoint and returns its path; after finish_save(). A collective.
  Result<std::string> save();
  /// The same, and `best` names it; it stays until another one does. After finish_save().
  Result<std::string> save_best();
  /// Starts to write one while training goes on: values are copied until before_update() returns.
  /// After finish_save(). A collective.
  Status begin_save();
  /// To be called before every update of parameters and optimizer state.
  void before_update();
  /// Has a save that was begun failed, as far as this rank knows? At once.
  bool save_failed();
  /// Waits for a save that was begun; its path or its failure, once; empty when there is none. The
  /// same on all ranks.
  Result<std::string> finish_save();
  /// The newest complete checkpoint of this run that this rank knows of, also one that it resumed
  /// from; empty when there is none. At once.
  std::string last_saved();
  /// Gives every rank the buffers of rank 0: running statistics differ between ranks. A collective.
  Status share_buffers();

  std::int64_t step = 0;     ///< done
  std::int64_t samples = 0;  ///< seen over all ranks
  BestScore best;            ///< on rank 0, kept in checkpoints

 private:
  Status begin();
  Status load_weights();
  Status load_optimizer();
  Status load_parts();
  Status load_scaler();
  Result<checkpoint::Snapshot> snapshot() const;

  comm::Communicator& world_;
  torch::nn::Module& module_;
  ParameterStore* store_ = nullptr;
  GradScaler* scaler_ = nullptr;
  const TrainerOptions& options_;
  checkpoint::RunLock lock_;     // of the directory, on rank 0
  checkpoint::RunIdentity run_;  // on rank 0
  std::string resumed_from_;     // a checkpoint
  std::string saved_;            // by save()
  std::unique_ptr<checkpoint::AsyncCheckpoint> background_;
};

}  // namespace stormo::train
