// When a run saves, and what becomes of saves that fail.
#include <stormo/train/run/training_run.h>

namespace stormo::train {
namespace {

/// A failure of the ranks to talk, not of the disk.
bool is_end_of_group(const Status& status) {
  return status.code() == Code::kPeerLost || status.code() == Code::kCancelled ||
         status.code() == Code::kMismatch || status.code() == Code::kDeadlineExceeded;
}

}  // namespace

Status TrainingRun::save_when_due(bool in_background) {
  if (options_.checkpoint.directory.empty()) return {};
  STORMO_RETURN_IF_ERROR(note_save(state_.finish_save()));
  saving_step_ = state_.step;
  if (!in_background) return note_save(state_.save());
  const Status begun = state_.begin_save();
  return begun.ok() ? begun : note_save(begun);
}

// A failed save costs no training: the next one that is due tries again. The same on all ranks.
Status TrainingRun::note_save(const Result<std::string>& outcome) {
  if (outcome.ok()) {
    if (outcome->empty()) return {};  // there was none
    end_.checkpoint = *outcome;
    failed_saves_ = 0;
    return {};
  }
  if (is_end_of_group(outcome.status())) return outcome.status().within("checkpoint");
  const int most = options_.checkpoint.max_failures;
  observer().on_save_failed({.step = saving_step_,
                             .failures = ++failed_saves_,
                             .max_failures = most,
                             .error = outcome.status().message()});
  if (failed_saves_ < most) return {};
  saves_gave_up_ = true;
  return io_error("saving failed " + std::to_string(failed_saves_) +
                  " times in a row (checkpoint.max_failures): " + outcome.status().message());
}

// Whatever became of the one before it.
Status TrainingRun::save_last() {
  if (options_.checkpoint.directory.empty()) return {};
  const Result<std::string> before = state_.finish_save();
  const Status noted = note_save(before);
  if (before.ok() || is_end_of_group(before.status())) STORMO_RETURN_IF_ERROR(noted);
  STORMO_ASSIGN_OR_RETURN(end_.checkpoint, state_.save());
  return {};
}

}  // namespace stormo::train
