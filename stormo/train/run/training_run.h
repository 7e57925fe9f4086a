#pragma once

#include <array>
#include <csignal>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/data/prefetch.h>
#include <stormo/observe/records.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/checkpoint/run_state.h>
#include <stormo/train/estimate/step_sizes.h>
#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/evaluation/segment_parts.h>
#include <stormo/train/options.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/record/step_log.h>
#include <stormo/train/reduction/overlap_trial.h>
#include <stormo/train/run/averaging_schedule.h>
#include <stormo/train/run/session_steps.h>
#include <stormo/train/run/stop_signal.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/task.h>
#include <stormo/train/worker/worker_progress.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// What a worker of server processes leaves to the first one, until it may have to do it itself.
struct LeftToTheFirst {
  CheckpointOptions checkpoint;
  std::int64_t eval_every = 0;
  std::int64_t patience = 0;
  std::vector<EvalSplit> splits;            ///< none where the first one stays the first
  std::optional<std::string> earlier = {};  ///< the run whose checkpoints are overwritten
};

/// The arguments of a Trainer; borrowed by the run.
struct RunSetup {
  comm::Communicator& world;
  Task task;
  std::shared_ptr<const data::Dataset> train;
  std::vector<EvalSplit> splits;
  TrainerOptions options;
  plan::StepPlan plan;
  observe::RunObserver* observer = nullptr;
  Sink* sink = nullptr;
  DoneAction done = {};
  server::Facts facts = {};  ///< of run_facts(), for a worker of server processes
  std::optional<LeftToTheFirst> left = {};
  std::function<Result<observe::RunObserver*>()> lead = {};  ///< see Trainer::on_lead()
};

/// One run from its first to its last step. Every member function is a collective.
///
/// With options.session this process is of a worker, and `world` has the ranks of that. The first
/// worker evaluates, saves and reports, while others go on. With backups another one does that from
/// then on when the first one is lost.
class TrainingRun {
 public:
  /// The numbers that the ranks add up at the end of a step: loss, samples, ranks that
  /// were asked to save, failed saves, and for each signal the ranks that received it. With
  /// averages there is one more: the squares of the ranks' distances from them.
  static_assert(kAgreedNumbers == 4 + StopSignal::kSignals.size());

  explicit TrainingRun(RunSetup& setup);
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Trains until the last step or a signal, evaluates, saves. kInterrupted after a signal.
  Result<observe::EndRecord> run();
  /// 0, SIGINT, or SIGTERM, also for what schedulers send; equal on all ranks.
  int interrupt_signal() const { return signal_ == 0 || signal_ == SIGINT ? signal_ : SIGTERM; }
  /// See Trainer::last_saved(). No collective.
  std::string last_saved() { return state_.last_saved(); }
  /// Whether all ranks end with this status by themselves: then nobody has to be told.
  bool all_know(const Status& status) const;
  /// Whether everything before the first step has succeeded.
  bool started() const { return started_training_; }

 private:
  Status start();
  /// The store, and what it is made of: a checkpoint or the initial values.
  Status make_parameters();
  void report_start();
  Status train();
  Status train_one_step();
  Status try_overlap();
  Status agree(const StepOutcome& mine);
  Status agree_in_worker(const StepOutcome& mine);
  Status exchange(const StepOutcome& mine, StepOutcome& all);
  std::int64_t next_common_step() const;
  StepAt next_step() const;
  Status end_step(const StepOutcome& mine);
  Status note_agreement();
  Status follow_period();
  // of an asynchronous plan, see worker_rounds.cc
  Status train_round();
  void note_own_step(const StepOutcome& mine);
  Status end_round();
  Status note_servers();
  using Shards = std::vector<ParameterStore::ShardReport>;
  /// By rank of a worker that is cut; else those of this rank alone. A collective.
  Result<std::vector<Shards>> shards_of_parts();
  // of a worker of server processes, see session_steps.cc
  Status begin_session();
  Status train_in_session();
  Result<bool> take_turn(SessionSteps& steps);
  Status do_task(SessionSteps& steps, const server::Ledger::Turn& turn);
  Status follow_others(SessionSteps& steps, const server::Ledger::Turn& turn);
  Status save_in_session(std::int64_t position);
  /// Saves as of a step before which nothing is left to do.
  Status at_position(std::uint64_t position, const std::function<Status()>& save);
  Status end_session(const server::Ledger::Turn& last);
  Result<server::Ledger::Turn> stand_by(SessionSteps& steps, server::Ledger::Turn turn);
  /// The first worker is lost, and this one is the first from now on.
  Status take_over();
  Status take_over_folder(const LeftToTheFirst& left);
  Result<data::Batch> load_batch();
  double rate_of(std::int64_t step) const;
  Status between_steps();
  Status evaluate_all(bool at_end);
  Status judge(const Evaluation& validation);
  Status save_best();
  Status save_when_due(bool in_background);
  Result<std::string> check_weights();
  /// Where ranks have parts: all parameters can be read while it lives; null for a model that is
  /// too large.
  std::shared_ptr<void> whole_model();
  Status show_progress(bool last = false);
  void show_step(observe::StepRecord record, bool logged);
  Status gather_shares(observe::StepRecord& record);
  void note_loss(double loss_sum, double samples, std::int64_t steps);
  void warn(std::string kind, std::string message);
  void warn_at_start();
  void warn_at_chance();
  Status save_last();
  Status note_save(const Result<std::string>& outcome);
  Status finish();
  Status gather_bytes_sent();
  Status record_run();
  observe::RunObserver& observer() const;
  /// All parameters can be read while the result lives, unless parts_ shows them.
  std::shared_ptr<void> readable() { return parts_ ? nullptr : store_->readable(); }
  /// Whether each rank has columns of the samples, so that ranks evaluate together, with parts of
  /// the model.
  bool has_columns() const { return setup_.plan.labels >= 0; }
  int hosts() const;  ///< of the ranks, or of the workers of server processes
  /// Of processes without a common world: evaluates, saves, and reports.
  bool is_first() const { return leads_; }

  RunSetup& setup_;
  comm::Communicator& world_;
  const TrainerOptions& options_;
  data::Sampler sampler_;
  std::int64_t steps_;  // of the whole run
  std::unique_ptr<AxisGroups> groups_;
  std::optional<tensor::Grid> grid_;  // this rank has some places of its samples
  std::unique_ptr<ParameterStore> store_;
  std::optional<SegmentParts> parts_;   // ranks have parts of the model
  bool made_in_parts_ = false;          // no rank has ever had the whole
  std::unique_ptr<GradScaler> scaler_;  // in float16
  RunState state_;
  LaneTimer lanes_;
  StepLog log_;
  RecentLoss recent_loss_;
  LossWatch loss_watch_;
  std::vector<std::string> hosts_;                               // by rank, where there are several
  double step_loss_ = std::numeric_limits<double>::quiet_NaN();  // of the last step; NaN: unknown
  TimePoint shown_{};
  std::unique_ptr<data::Prefetcher> prefetcher_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<OverlapTrial> overlap_;         // null: the plan has one form only
  std::unique_ptr<AveragingSchedule> averaging_;  // null: parameters do not diverge
  std::int64_t agreed_step_ = 0;                  // after which all ranks agreed last
  bool steps_overlap_ = false;
  bool log_is_due_ = false;
  bool agreed_ = false;                         // in this step
  double consensus_distance_ = 0;               // before the last average
  std::unique_ptr<WorkerProgress> progress_;    // of an asynchronous plan
  std::unique_ptr<SessionSteps> session_;       // of a worker of server processes
  WorkerProgress::Totals seen_;                 // of all workers
  std::int64_t round_begin_ = 0;                // the step after which the round began
  bool ends_round_ = false;                     // this worker's step is its last one of the round
  bool called_ = false;                         // this worker knows that the round should end
  StepOutcome round_;                           // this rank's sums since the ranks last agreed
  std::array<std::int64_t, 2> own_position_{};  // this rank's step and samples, at a round's end
  std::int64_t loaded_samples_ = 0;             // of all ranks, in the step

  observe::EndRecord end_;
  TimePoint started_;
  std::int64_t first_sample_ = 0;
  std::int64_t saving_step_ = 0;  // of the last save that was begun
  int failed_saves_ = 0;          // in a row
  bool saves_gave_up_ = false;    // on all ranks
  bool save_failed_ = false;      // rank 0 knows of a failure that is not yet told
  double learning_rate_ = 0;
  std::int64_t evaluated_step_ = -1;
  bool enough_ = false;  // patience has run out
  bool leads_ = true;    // see is_first()
  int signal_ = 0;
  bool save_now_ = false;  ///< a rank was asked to
  bool started_training_ = false;
};

}  // namespace stormo::train
