#pragma once

#include <chrono>
#include <cstdint>

#include <stormo/base/clock.h>

namespace stormo::comm {

/// The processor's time stamp counter: monotonic, of unknown frequency, and cheaper than a clock.
/// Use it for records, not for decisions.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t value = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

/// Converts ticks to time. It computes the frequency from the ticks and the time since its
/// construction.
class TickScale {
 public:
  TickScale() : ticks_(ticks()), time_(std::chrono::steady_clock::now()) {}
  /// How long ago `then` was, as of now.
  Duration age(std::uint64_t then) const { return between(then, ticks()); }
  /// Zero when `to` is not after `from`.
  Duration between(std::uint64_t from, std::uint64_t to) const {
    const std::uint64_t now = ticks();
    const Duration passed = std::chrono::steady_clock::now() - time_;
    if (now <= ticks_ || from >= to) return Duration::zero();
    const double share = static_cast<double>(to - from) / static_cast<double>(now - ticks_);
    return Duration(static_cast<std::int64_t>(share * static_cast<double>(passed.count())));
  }

 private:
  std::uint64_t ticks_;
  TimePoint time_;
};

}  // namespace stormo::comm
