#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include <stormo/base/clock.h>
#include <stormo/observe/records.h>
#include <stormo/train/step/lane_timer.h>

namespace stormo::train {

/// Measures the time of training between two logged steps, without evaluation and checkpoints.
class StepLog {
 public:
  explicit StepLog(LaneTimer& lanes) : lanes_(lanes) {}

  /// Starts, or continues after pause().
  void resume();
  void pause();
  /// What was trained since the last call, or since resume(): at least one step.
  void add(std::int64_t samples, std::int64_t steps = 1);

  /// Speed, remaining time and lane shares since the last take(), and the times of the whole run;
  /// the other fields are the caller's.
  observe::StepRecord look(std::int64_t steps_left);
  /// The same, and starts a new measurement.
  observe::StepRecord take(std::int64_t steps_left);

  const observe::StepTimes& times() const { return times_; }  ///< of all steps
  double total_seconds() const { return total_seconds_; }

 private:
  LaneTimer& lanes_;
  TimePoint started_{};
  TimePoint step_started_{};
  observe::StepTimes times_;
  std::array<double, kNumLanes> total_lane_seconds_{};
  double seconds_ = 0;        // since the last take()
  double total_seconds_ = 0;  // of all that is over
  std::array<double, kNumLanes> lane_seconds_{};
  std::int64_t samples_ = 0;
  std::int64_t steps_ = 0;
};

/// Watches whether a loss grows out of hand.
class LossWatch {
 public:
  static constexpr double kFactor = 10;

  /// The loss of a step, or the mean of some. True for the first one that is kFactor times that of
  /// the first call.
  bool has_grown(double loss) {
    if (first_ <= 0) first_ = loss;
    const bool grown = !told_ && first_ > 0 && loss >= kFactor * first_;
    told_ = told_ || grown;
    return grown;
  }
  double first() const { return first_; }

 private:
  double first_ = 0;
  bool told_ = false;
};

/// Mean loss over the samples of the last steps.
class RecentLoss {
 public:
  /// Of `steps` steps, at least 1, or of the fewest more where steps were added together.
  explicit RecentLoss(std::int64_t steps) : most_(steps) {}

  /// The sums over `steps` steps.
  void add(double loss_sum, double samples, std::int64_t steps = 1);
  double mean() const;
  std::int64_t steps() const { return count_; }

 private:
  struct Step {
    double loss_sum, samples;
    std::int64_t steps;
  };
  std::int64_t most_;
  std::int64_t count_ = 0;  // steps that are kept
  std::deque<Step> steps_;
};

}  // namespace stormo::train
