#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/event.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/observe/records.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/options.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/task.h>

namespace stormo::train {

class ElasticSession;

/// Trains `task` on all ranks of `world` with `options`: makes the StepPlan, runs its steps, logs,
/// evaluates, saves. Every rank makes the same calls. Sparse gradients (Embedding with
/// sparse(true)) need an optimizer that leaves other rows unchanged: optim::leaves_rest_alone().
class Trainer {
 public:
  Trainer(comm::Communicator& world, Task task, std::shared_ptr<const data::Dataset> train,
          std::vector<EvalSplit> splits, TrainerOptions options);
  ~Trainer();

  /// Rank 0's observer prints; others are ignored. Not owned.
  void set_observer(observe::RunObserver* observer);
  /// What is known of the data, for the record of the start.
  void set_data_records(std::vector<observe::DataRecord> records);
  /// For a program with TrainerOptions::resume: keys of recipes ("optimizer.lr"), or sections, that
  /// may have other values than in the checkpoint, and "data". Without it, options that change what
  /// is trained are refused; see docs/checkpoints.md.
  void accept_changes(std::vector<std::string> keys);
  /// Ranks that hold the same parameters and optimizer state compare them while they train: all of
  /// it once in `steps` steps, a slice in each, and all of it before it is saved. Wrong bits of a
  /// minority are replaced, with a warning "replica_mismatch"; see docs/faults.md. 0: no; -1: as
  /// often as costs at most 1 % of a step. The same on all ranks.
  void verify_state(std::int64_t steps);
  /// 1-bit Adam: after so many steps, > 0, the optimizer's mean of squares stays as it is, and
  /// ranks average momenta in place of gradients, in the codec of TrainerOptions::gradients. Until
  /// then gradients travel as they are, and there is no codec. See docs/compression.md. The same on
  /// all ranks.
  void freeze_after(std::int64_t steps);
  /// For a worker of server processes with backups, which may have to go on with what the first
  /// worker did: called once then, by run() on its rank 0. The observer that it returns, not owned,
  /// prints from there on; a failure ends the run.
  void on_lead(std::function<Result<observe::RunObserver*>()> make);
  /// For a process of an elastic job (docs/elastic.md), whose world is the session's. Not owned.
  /// run() then is no collective of one group, but a run in all epochs in which this process is a
  /// member; on_lead() makes the observer where it becomes rank 0.
  void set_elastic(ElasticSession* session);
  /// Receives this rank's Events. Not owned.
  void set_sink(Sink* sink);
  /// Sets a function that is called for each action of this rank's steps when it is done.
  void on_action(DoneAction done);
  /// The plan that run() will execute; with strategy kAuto it is empty until run() has measured
  /// some steps and chosen one. If overlap is measured, the first steps also try plans with
  /// buckets.
  const plan::StepPlan& plan() const;
  /// Why there is no plan; OK where there is one, and where run() is going to choose it (kAuto).
  const Status& composed() const;
  /// Runs the training; blocks until the run is over. A collective; call once. First the ranks
  /// compare versions, options, data, model and plan. If they differ, or are invalid on one rank,
  /// all ranks get kRefused with the same text, and the group still works. Afterwards the module
  /// has the trained values on every rank, with every strategy. kInterrupted after a signal on any
  /// rank, when the checkpoint is saved. A failure of one rank makes the group fail with its cause.
  /// Does not throw.
  Result<observe::EndRecord> run();
  /// If run() returned kInterrupted: SIGINT or SIGTERM, where SIGTERM also stands for the signals
  /// of schedulers; else 0. Equal on all ranks.
  int interrupt_signal() const;
  /// After run(), also after a failure: the newest complete checkpoint of this run that this rank
  /// knows of; empty if there is none.
  const std::string& last_saved() const;
  /// Whether run() has reached the first step.
  bool started() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stormo::train
