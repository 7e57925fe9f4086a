#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include <stormo/base/clock.h>
#include <stormo/server/coordinator/step_coordinator.h>
#include <stormo/server/ledger.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/train/run/training_run.h>
#include <stormo/train/worker/task_loader.h>

namespace stormo::train {

/// A worker that waits for others looks at signals so often.
inline constexpr Duration kLook = std::chrono::milliseconds(100);

/// How far a worker of server processes is.
struct SessionSteps {
  server::WorkerSession& session;
  server::Ledger& ledger;
  server::Ledger::Terms terms;
  TaskLoader loader;
  server::StepTask task = {};            ///< in hand, or the last one
  server::Ledger::Outcome outcome = {};  ///< of the last task, not yet noted in the ledger
  server::Ledger::Totals totals = {};    ///< of all workers, after the last whole step
  std::int64_t own_steps = 0;            ///< of its share, since it began
  std::uint64_t position = 0;            ///< at the end: the first step that is not done by all
  bool member = false;                   ///< others may wait for it at the shards
  std::unique_ptr<server::StepCoordinator> coordinator =
      {};  ///< with portions, of the first worker
};

/// A run of a worker of server processes, whose ranks are the world. The ledger says which steps it
/// does. No step waits for all workers: the first one evaluates, saves and reports while others go
/// on, and all stop by themselves. With backups another one does that from then on when the first
/// one is lost.
class SessionRun final : public TrainingRun {
 public:
  explicit SessionRun(RunSetup& setup) : TrainingRun(setup) {}

 private:
  Status prepare() override;
  Result<data::Batch> load() override { return steps_->loader.load(steps_->task); }
  Status agree(const StepOutcome& mine) override;
  Status train() override;
  Status finish() override;
  Status save_last() override;
  Status note_end() override;

  Result<bool> take_turn(SessionSteps& steps);
  Status do_task(SessionSteps& steps, const server::Ledger::Turn& turn);
  Status follow_others(SessionSteps& steps, const server::Ledger::Turn& turn);
  Status do_what_is_due(std::int64_t step);
  /// Saves as of a step before which nothing is left to do.
  Status at_position(std::uint64_t position, const std::function<Status()>& save);
  Status end_session(const server::Ledger::Turn& last);
  // see take_over.cc
  Result<server::Ledger::Turn> stand_by(SessionSteps& steps, server::Ledger::Turn turn);
  /// The first worker is lost, and this one is the first from now on.
  Status take_over();
  Status take_over_folder(const LeftToTheFirst& left);

  std::unique_ptr<SessionSteps> steps_;
  Agreement agreed_;  // of the ranks of the worker, the last one
};

}  // namespace stormo::train
