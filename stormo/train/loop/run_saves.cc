#include <stormo/train/loop/run_saves.h>

namespace stormo::train {
namespace {

/// A failure of the ranks to talk, not of the disk.
bool is_end_of_group(const Status& status) {
  return status.code() == Code::kPeerLost || status.code() == Code::kCancelled ||
         status.code() == Code::kMismatch || status.code() == Code::kDeadlineExceeded;
}

}  // namespace

Status RunSaves::save(bool in_background) {
  if (run_.options.checkpoint.directory.empty()) return {};
  STORMO_RETURN_IF_ERROR(note_last());
  saving_step_ = run_.state.step;
  if (!in_background) return note(run_.state.save());
  const Status begun = run_.state.begin_save();
  return begun.ok() ? begun : note(begun);
}

Status RunSaves::save_best() {
  saving_step_ = run_.state.step;
  return note(run_.state.save_best());
}

// A failed save costs no training: the next one that is due tries again. The same on all ranks.
Status RunSaves::note(const Result<std::string>& outcome) {
  if (outcome.ok()) {
    if (outcome->empty()) return {};  // there was none
    run_.end.checkpoint = *outcome;
    failures_ = 0;
    return {};
  }
  if (is_end_of_group(outcome.status())) return outcome.status().within("checkpoint");
  const int most = run_.options.checkpoint.max_failures;
  run_.observer().on_save_failed({.step = saving_step_,
                                  .failures = ++failures_,
                                  .max_failures = most,
                                  .error = outcome.status().message()});
  if (failures_ < most) return {};
  gave_up_ = true;
  return io_error("saving failed " + std::to_string(failures_) +
                  " times in a row (checkpoint.max_failures): " + outcome.status().message());
}

// Whatever became of the one before it.
Status RunSaves::save_last() {
  if (run_.options.checkpoint.directory.empty()) return {};
  const Result<std::string> before = run_.state.finish_save();
  const Status noted = note(before);
  if (before.ok() || is_end_of_group(before.status())) STORMO_RETURN_IF_ERROR(noted);
  STORMO_ASSIGN_OR_RETURN(run_.end.checkpoint, run_.state.save());
  return {};
}

}  // namespace stormo::train
