#pragma once

#include <array>
#include <cstdint>

#include <stormo/base/clock.h>
#include <stormo/observe/records.h>
#include <stormo/train/lane_timer.h>

namespace stormo::train {

/// Measures training between two logged steps; evaluation and checkpoints do not count.
class StepLog {
 public:
  explicit StepLog(LaneTimer& lanes) : lanes_(lanes) {}

  /// Starts, or goes on after a pause.
  void resume();
  void pause();
  void add_samples(std::int64_t samples) {
    samples_ += samples;
    ++steps_;
  }

  /// Speed, remaining time and lane shares since the last call; the other fields are the caller's.
  observe::StepRecord take(std::int64_t steps_left);

  double total_seconds() const { return total_seconds_; }

 private:
  LaneTimer& lanes_;
  TimePoint started_{};
  double seconds_ = 0;        // since the last take()
  double total_seconds_ = 0;  // of all that is over
  std::array<double, kNumLanes> lane_seconds_{};
  std::int64_t samples_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace stormo::train
