#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/base/status.h>
#include <stormo/checkpoint/async.h>
#include <stormo/checkpoint/file/run_lock.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/sampler.h>
#include <stormo/model/chain.h>
#include <stormo/observe/records.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/evaluation/best_score.h>
#include <stormo/train/options.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {

/// The identity of the run in a folder of checkpoints; nothing if there is none.
std::optional<std::string> run_in_folder(const std::string& directory);

/// OK when a checkpoint has no state of another optimizer, and all of that of L-BFGS or none.
Status check_optimizer_state(const checkpoint::Manifest& manifest, const Optimizer& optimizer,
                             const OptimizerOptions& options);

/// The state that a run needs to resume: weights, optimizer state, progress. Replicated state is
/// read by rank 0 and written by the ranks of its host. Sharded state is read and written by its
/// owners, in a folder that all of them can access.
class RunState {
 public:
  /// Arguments are borrowed.
  RunState(comm::Communicator& world, torch::nn::Module& module, const TrainerOptions& options,
           data::Sampler& sampler);

  /// Gives every rank the weights of rank 0 or, with options.resume, the weights and progress of
  /// the newest checkpoint; the sampler then ends its epoch as it was begun. Without
  /// options.resume, a directory that has checkpoints is refused, unless options.overwrite. A
  /// directory into which another run writes is always refused. A collective.
  enum class Values : std::uint8_t {
    kEqual,  ///< as said
    kLater,  ///< parameters get no values here; materialize_segment() brings them
    kOwn,    ///< of a new run: those that are trained stay as each rank has them
  };
  Status start(Values values = Values::kEqual);
  /// Gives the parameters of a segment the values that start() would have given them; see
  /// MaterializeSegment. `chain` is the module.
  void materialize_segment(model::Chain& chain, std::size_t segment);
  /// Sets the store that was made of these weights, and the loss scaler, if there is one; both are
  /// borrowed. With options.resume restores their state from the checkpoint. A collective.
  Status attach(ParameterStore& store, GradScaler* scaler = nullptr);
  /// After attach(), where the plan has codecs that keep what they lose: with options.resume the
  /// store goes on with what this rank has kept. Every rank reads the checkpoint.
  Status load_residuals();
  /// Instead of start(), for a run whose step and samples are known and that another process has
  /// kept in the directory of the options, if there is one: goes on with its checkpoints and its
  /// best score. `earlier`: the run that it overwrites. Waits until the other process writes
  /// there no more, at most 15 s; then kInvalidArgument. On rank 0.
  Status take_over(const std::optional<std::string>& earlier);
  /// Another process may take over; this one saves nothing any more.
  void release_folder() { lock_ = {}; }
  /// Instead of start() and attach(): the store goes on in another group with the state that it
  /// has. Borrowed. Not a collective.
  void go_on(ParameterStore& store) { store_ = &store; }
  /// Writes a checkpoint and returns its path; after finish_save(). A collective.
  Result<std::string> save();
  /// The same, and makes the link `best` point to it; it is kept until the next save_best(). After
  /// finish_save(). A collective.
  Result<std::string> save_best();
  /// Starts to write a checkpoint in the background: values are copied until before_update()
  /// returns. After finish_save(). A collective.
  Status begin_save();
  /// Call before every update of parameters and optimizer state. Blocks until they are copied.
  void before_update();
  /// Whether a save that was begun has failed, as far as this rank knows. Does not block.
  bool save_failed();
  /// Blocks until a save that was begun is complete. Returns its path or its failure, once; empty
  /// if there is none. The same on all ranks. A collective.
  Result<std::string> finish_save();
  /// The newest complete checkpoint of this run that this rank knows of, also one that it resumed
  /// from; empty if there is none. Does not block.
  std::string last_saved();
  /// Gives every rank the buffers of rank 0: running statistics differ between ranks. A collective.
  Status share_buffers();

  std::string
      training_data;  ///< on rank 0, of describe_samples(), kept in checkpoints; may be empty
  std::vector<std::string> accepted_changes;   ///< on rank 0, see Trainer::accept_changes()
  std::vector<observe::ChangeRecord> changed;  ///< on rank 0, since the checkpoint that it resumes
  std::string link_warning;                    ///< on rank 0, see checkpoint::link_warning()
  std::int64_t step = 0;                       ///< done
  std::int64_t samples = 0;                    ///< seen over all ranks
  BestScore best;                              ///< on rank 0, kept in checkpoints
  /// With a coordinator: of optim::Lbfgs, kept in checkpoints. The store has the vectors.
  std::vector<double> lbfgs_numbers;

 private:
  Status begin(const TensorMap& values);
  Status load_weights(const TensorMap& values);
  Status note_changes(const checkpoint::Manifest& manifest);
  Status load_optimizer();
  Status load_parts();
  Status load_scaler();
  Status load_order(const std::string& state_json);
  Status resume_order();
  Result<checkpoint::Snapshot> snapshot() const;
  Status share_state();

  comm::Communicator& world_;
  torch::nn::Module& module_;
  ParameterStore* store_ = nullptr;
  GradScaler* scaler_ = nullptr;
  const TrainerOptions& options_;
  data::Sampler& sampler_;
  /// What the order of the epoch was made for from which the run resumes.
  struct SavedOrder {
    data::Sharding sharding = data::Sharding::kShuffled;
    data::EpochLayout layout;
  } saved_order_;
  checkpoint::RunLock lock_;                             // of the directory, on rank 0
  checkpoint::RunIdentity run_;                          // on rank 0
  std::string resumed_from_;                             // a checkpoint
  std::optional<checkpoint::CheckpointReader> weights_;  // on rank 0, of materialize_segment()
  std::string saved_;                                    // by save()
  std::unique_ptr<checkpoint::AsyncCheckpoint> background_;
};

}  // namespace stormo::train
