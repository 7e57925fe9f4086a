// A worker of server processes that goes on with what the first worker did, because that was lost.
#include <string>
#include <utility>

#include <fmt/format.h>

#include <stormo/checkpoint/exchange.h>
#include <stormo/train/run/training_run.h>
#include <stormo/train/state/saved_samples.h>

namespace stormo::train {

// With backups nobody goes while the first worker evaluates and saves: it may still be lost.
Result<server::Ledger::Turn> TrainingRun::stand_by(SessionSteps& s, server::Ledger::Turn turn) {
  if (!s.session.may_change_chief()) return turn;
  const Interval waits(lanes_, Lane::kWait, "wait for the end of the run");
  while (!is_first() && !s.session.is_over()) {
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
Status TrainingRun::take_over() {
  session_->session.pulse().get_on("take over");
  const LeftToTheFirst left = *std::exchange(setup_.left, {});
  setup_.options.checkpoint = left.checkpoint;
  setup_.options.eval_every = left.eval_every;
  setup_.options.patience = left.patience;
  setup_.splits = left.splits;
  leads_ = true;
  Result<std::string> taken = std::string();
  if (world_.rank() == 0) {
    if (const Status status = take_over_folder(left); !status.ok()) taken = status;
  }
  taken = checkpoint::broadcast_outcome(world_, taken);
  STORMO_RETURN_IF_ERROR(taken.status().within("taking over from the worker that was lost"));
  if (world_.rank() == 0 && setup_.lead) {
    STORMO_ASSIGN_OR_RETURN(setup_.observer, setup_.lead());
  }
  warn("another_chief",
       fmt::format("worker {} evaluates, saves and reports from here on: the one that did was lost",
                   session_->session.worker()));
  return {};
}

// On rank 0.
Status TrainingRun::take_over_folder(const LeftToTheFirst& left) {
  if (left.checkpoint.directory.empty()) return state_.take_over({});
  state_.training_data = describe_samples(*setup_.train);
  return state_.take_over(left.earlier);
}

}  // namespace stormo::train
