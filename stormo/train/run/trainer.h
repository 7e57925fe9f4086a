#pragma once

#include <memory>
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

/// Trains `task` on all ranks of `world` as `options` says: composes the StepPlan, runs it, logs,
/// evaluates, saves. The same call on every rank. Sparse gradients (Embedding with sparse(true))
/// take an optimizer that leaves other rows alone: optim::leaves_rest_alone().
class Trainer {
 public:
  Trainer(comm::Communicator& world, Task task, std::shared_ptr<const data::Dataset> train,
          std::vector<EvalSplit> splits, TrainerOptions options);
  ~Trainer();

  /// Rank 0's observer prints; others are ignored. Not owned.
  void set_observer(observe::RunObserver* observer);
  /// Receives this rank's Events. Not owned.
  void set_sink(Sink* sink);
  /// Told of each action of this rank's steps when it is done.
  void on_action(DoneAction done);
  /// The plan that run() will execute; its first steps also try forms of it with buckets, where
  /// overlap is measured.
  const plan::StepPlan& plan() const;
  /// Blocks until the run is over; call once. Afterwards the module holds the trained values on
  /// every rank, whatever the strategy. kInterrupted after a signal that any rank received,
  /// with the checkpoint saved; throws nothing. A failure of one rank fails the group with its
  /// cause. Before anything else the ranks compare versions, options, data, model and plan: where
  /// they differ, or one has a problem with its own, all get kRefused with one text, and the group
  /// stays as it is.
  Result<observe::EndRecord> run();
  /// SIGINT or SIGTERM, which also stands for the notices of schedulers, when run() returned
  /// kInterrupted; else 0. Equal on all ranks.
  int interrupt_signal() const;
  /// After run(): the newest complete checkpoint of this run that this rank knows of, whatever
  /// ended the run; empty when there is none.
  const std::string& last_saved() const;
  /// Whether run() came as far as the first step.
  bool started() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stormo::train
