#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include <stormo/base/clock.h>
#include <stormo/transport/memory/wait.h>

namespace stormo::mpi {

/// The pause before the next look at something that only looking brings forward, by the time waited
/// so far. At first null: there is none; then zero: the core is offered to others; then a small
/// part of that time, so that a long wait costs neither a core nor much delay.
inline std::optional<Duration> pause_after(Duration waited, const transport::WaitPolicy& policy) {
  constexpr Duration kYield = std::chrono::microseconds(200);
  constexpr Duration kShortest = std::chrono::microseconds(20);
  constexpr Duration kLongest = std::chrono::milliseconds(4);
  constexpr int kPartOfTheWait = 16;
  if (waited < policy.spin) return std::nullopt;
  if (waited < policy.spin + kYield) return Duration::zero();
  return std::clamp(waited / kPartOfTheWait, kShortest, kLongest);
}

/// The pauses of one wait.
class Pacing {
 public:
  explicit Pacing(const transport::WaitPolicy& policy) : policy_(policy) {}

  /// Passes the time until the next look. True when there is time to look at other things too.
  bool pause() {
    if (++looks_ <= kLooks) return false;
    const TimePoint now = std::chrono::steady_clock::now();
    if (looks_ == kLooks + 1) start_ = now;
    const std::optional<Duration> pause = pause_after(now - start_, policy_);
    if (!pause) return false;
    if (*pause == Duration::zero()) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(*pause);
    }
    return true;
  }

 private:
  static constexpr int kLooks = 4;

  const transport::WaitPolicy& policy_;
  int looks_ = 0;
  TimePoint start_{};
};

}  // namespace stormo::mpi
