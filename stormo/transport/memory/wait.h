#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/health.h>

namespace stormo::transport {

/// How long to stay awake before sleeping in the kernel. Never unbounded: two ranks that spin on
/// one core cost milliseconds per hop.
struct WaitPolicy {
  int loads = 0;      ///< first only look, so often: the answer of a peer that is as fast as we are
  Duration spin{0};   ///< then pause instructions
  Duration yield{0};  ///< then sched_yield
  int min_pauses = 20;
  bool operator==(const WaitPolicy&) const = default;
};

/// A core for each rank: spin for microseconds, then yield for 2 ms, then park. The ranks of a
/// training step differ by as much, and a core that slept takes 0.1 to 1 ms to wake in a virtual
/// machine. Fewer cores than ranks: yield for 0.2 ms, then park. Whoever yields gives its core to
/// those who have something to do, and is spared a sleep and a wake-up; ranks that park at once,
/// each for want of one that a core has yet to wake, have to wake each other at every meeting.
WaitPolicy wait_policy(int ranks, int cores);

/// Cores that this thread may run on (affinity mask).
int usable_cores();

/// A counter that one rank raises and others wait for; lives in shared memory, all zeros at birth.
/// Only flags cross processes: no lock is ever shared.
struct alignas(64) Flag {
  static constexpr std::size_t kBesideBytes = 56;

  std::atomic<std::uint32_t> value{0};  ///< written by its owner only; also the futex word
  /// Rest of the value's cache line: what the owner writes here before it raises the flag reaches
  /// the waiters together with the value, at no cost of its own.
  alignas(8) std::array<std::byte, kBesideBytes> beside{};
  alignas(64) std::atomic<std::uint32_t> parked{0};  ///< waiters asleep on `value`

  std::uint32_t load() const { return value.load(std::memory_order_acquire); }
  /// Sets the value, which must grow (modulo 2^32), and wakes whoever sleeps.
  void raise(std::uint32_t to);
  /// Adds one and wakes whoever sleeps; for flags with several writers (doorbells).
  void ring();
};

/// True when `value` has reached `target`, in modulo 2^32 arithmetic.
inline bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

/// The first part of a wait: looks `policy.loads` times. True when the target was reached.
inline bool look_for(const Flag& flag, std::uint32_t target, const WaitPolicy& policy) {
  for (int i = 0; i <= policy.loads; ++i) {
    if (reached(flag.load(), target)) return true;
  }
  return false;
}

/// What ends a wait other than the flag: the group's failure, the caller's deadline.
struct WaitBounds {
  const WaitPolicy& policy;
  const Health& health;
  Deadline by;
};

/// Returns OK once flag >= target; else the group's first cause, or kDeadlineExceeded. A failure of
/// the group is seen within 20 ms.
Status wait_for(Flag& flag, std::uint32_t target, const WaitBounds& bounds);

}  // namespace stormo::transport
