#pragma once

#include <csignal>
#include <memory>
#include <string>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/observe/records.h>
#include <stormo/train/loop/run_context.h>
#include <stormo/train/loop/run_evaluation.h>
#include <stormo/train/loop/run_model.h>
#include <stormo/train/loop/run_progress.h>
#include <stormo/train/loop/run_saves.h>
#include <stormo/train/step/runner.h>

namespace stormo::train {

/// One run from its first to its last step. Every member function is a collective, unless noted
/// otherwise. What steps a rank does, and where it meets others, is the part of LockStepRun,
/// PairsRun, RoundsRun and SessionRun.
class TrainingRun {
 public:
  /// The one for the plan and the options. `setup` is borrowed. Not a collective.
  static std::unique_ptr<TrainingRun> create(RunSetup& setup);
  virtual ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Trains until the last step or a signal, evaluates, saves. kInterrupted after a signal.
  Result<observe::EndRecord> run();

  // Not collectives.
  /// 0, SIGINT, or SIGTERM, also for what schedulers send; equal on all ranks.
  int interrupt_signal() const {
    return run_.signal == 0 || run_.signal == SIGINT ? run_.signal : SIGTERM;
  }
  /// See Trainer::last_saved().
  std::string last_saved() { return run_.state.last_saved(); }
  /// Whether all ranks end with this status by themselves: then nobody has to be told.
  bool all_know(const Status& status) const {
    const bool is_of_all = run_.setup.elastic != nullptr && status.code() == Code::kMismatch;
    return saves_.gave_up() || is_of_all || status.code() == Code::kInterrupted;
  }
  /// Whether everything before the first step has succeeded.
  bool started() const { return started_training_; }

 protected:
  explicit TrainingRun(RunSetup& setup);

  /// When the parameters are there, and before the Runner is made.
  virtual Status prepare() = 0;
  /// Makes the parameters, and says from where the run goes on.
  virtual Status make_parameters();
  /// Makes the Runner; again after a step that was not done.
  Status make_runner();
  /// Before all ranks train: the report of the start.
  virtual Status begin_progress() { return progress_.start(); }
  /// See RunnerParts.
  virtual Result<data::Batch> load() = 0;
  virtual Status commit() { return {}; }
  virtual Status agree(const StepOutcome& mine) = 0;
  /// All steps.
  virtual Status train() = 0;
  /// What follows the last step: checks, the last checkpoint, evaluation, and the report.
  virtual Status finish();
  virtual Status save_last() { return saves_.save_last(); }
  /// What only a run of this kind reports at its end.
  virtual Status note_end() = 0;

  void begin_training();
  /// Evaluates between two steps.
  Status evaluate();

  RunContext run_;
  RunModel model_;
  RunProgress progress_;
  RunSaves saves_;
  RunEvaluation evaluation_;

 private:
  Status start();
  Status evaluate_at_end(std::shared_ptr<void>& shown);
  Status record_run();

  bool started_training_ = false;
};

}  // namespace stormo::train
