#pragma once

#include <chrono>
#include <cstdint>

namespace stormo {

using Duration = std::chrono::nanoseconds;
/// Monotonic time since an arbitrary start. Never compared between hosts.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// Source of monotonic time. State machines get `now` as an argument and never hold a clock.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class RealClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

/// Time that moves only when told to: simulations and tests.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

/// The moment after which a blocking call gives up with kDeadlineExceeded.
class Deadline {
 public:
  static Deadline never() { return Deadline(TimePoint::max()); }
  static Deadline at(TimePoint when) { return Deadline(when); }
  static Deadline after(Duration d) {
    const TimePoint now = std::chrono::steady_clock::now();
    return Deadline(d > TimePoint::max() - now ? TimePoint::max() : now + d);
  }

  bool is_never() const { return when_ == TimePoint::max(); }
  bool expired() const { return !is_never() && std::chrono::steady_clock::now() >= when_; }
  /// Time left, at least zero; Duration::max() for never().
  Duration remaining() const {
    if (is_never()) return Duration::max();
    const Duration left = when_ - std::chrono::steady_clock::now();
    return left > Duration::zero() ? left : Duration::zero();
  }
  TimePoint when() const { return when_; }

 private:
  explicit Deadline(TimePoint when) : when_(when) {}
  TimePoint when_;
};

}  // namespace stormo
