#pragma once

#include <cstdint>
#include <string>

#include <stormo/base/status.h>
#include <stormo/train/loop/run_context.h>

namespace stormo::train {

/// When a run saves, and what becomes of saves that fail. Every member function is a collective,
/// unless noted otherwise.
class RunSaves {
 public:
  /// `run` is borrowed.
  explicit RunSaves(RunContext& run) : run_(run) {}

  /// Saves the present step, if there is a folder.
  Status save(bool in_background);
  /// The same, as the best state so far.
  Status save_best();
  /// The last one.
  Status save_last();
  /// Learns what has become of the one that was begun last.
  Status note_last() { return note(run_.state.finish_save()); }
  /// Whether this step was saved last. Not a collective.
  bool has(std::int64_t step) const { return saving_step_ == step; }
  /// Whether so many saves failed that the run ends; on all ranks. Not a collective.
  bool gave_up() const { return gave_up_; }

 private:
  Status note(const Result<std::string>& outcome);

  RunContext& run_;
  std::int64_t saving_step_ = 0;  // of the last save that was begun
  int failures_ = 0;              // in a row
  bool gave_up_ = false;
};

}  // namespace stormo::train
