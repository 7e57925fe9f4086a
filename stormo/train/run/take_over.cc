// A worker of server processes that goes on with what the first worker did, because that was lost.
#include <string>
#include <utility>

#include <fmt/format.h>

#include <stormo/checkpoint/exchange.h>
#include <stormo/train/run/session_run.h>
#include <stormo/train/state/saved_samples.h>

namespace stormo::train {

// With backups nobody goes while the first worker evaluates and saves: it may still be lost.
Result<server::Ledger::Turn> SessionRun::stand_by(SessionSteps& s, server::Ledger::Turn turn) {
  if (!s.session.may_change_chief()) return turn;
  const Interval waits(run_.lanes, Lane::kWait, "wait for the end of the run");
  while (!run_.leads && !s.session.is_over()) {
    s.session.pulse().wait();
    const Status waited = s.ledger.wait(Deadline::after(kLook));
    const Result<server::Ledger::Turn> now = s.ledger.look();
    if (s.session.is_over()) break;
    STORMO_RETURN_IF_ERROR(waited);
    STORMO_RETURN_IF_ERROR(now.status());
    turn = *now;
    if (s.session.is_chief()) STORMO_RETURN_IF_ERROR(take_over());
  }
  return turn;
}

// Steps that are done stay done. What the worker before had not saved or shown yet is left out.
Status SessionRun::take_over() {
  steps_->session.pulse().get_on("take over");
  const LeftToTheFirst left = *std::exchange(run_.setup.left, {});
  run_.setup.options.checkpoint = left.checkpoint;
  run_.setup.options.eval_every = left.eval_every;
  run_.setup.options.patience = left.patience;
  run_.setup.splits = left.splits;
  run_.leads = true;
  Result<std::string> taken = std::string();
  if (run_.world.rank() == 0) {
    if (const Status status = take_over_folder(left); !status.ok()) taken = status;
  }
  taken = checkpoint::broadcast_outcome(run_.world, taken);
  STORMO_RETURN_IF_ERROR(taken.status().within("taking over from the worker that was lost"));
  if (run_.world.rank() == 0 && run_.setup.lead) {
    STORMO_ASSIGN_OR_RETURN(run_.setup.observer, run_.setup.lead());
  }
  run_.warn(
      "another_chief",
      fmt::format("worker {} evaluates, saves and reports from here on: the one that did was lost",
                  steps_->session.worker()));
  return {};
}

// On rank 0.
Status SessionRun::take_over_folder(const LeftToTheFirst& left) {
  if (left.checkpoint.directory.empty()) return run_.state.take_over({});
  run_.state.training_data = describe_samples(*run_.setup.train);
  return run_.state.take_over(left.earlier);
}

}  // namespace stormo::train
