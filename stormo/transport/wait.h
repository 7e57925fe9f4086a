#pragma once

#include <atomic>
#include <cstdint>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/health.h>

namespace stormo::transport {

/// How long to stay awake before sleeping in the kernel. Never unbounded: two ranks that spin on
/// one core cost milliseconds per hop.
struct WaitPolicy {
  Duration spin{0};   ///< pause instructions
  Duration yield{0};  ///< then sched_yield
  int min_pauses = 20;
  bool operator==(const WaitPolicy&) const = default;
};

/// A core for each rank: spin for microseconds, then yield, then park. Fewer cores than ranks: a
/// few pauses and yields, then park.
WaitPolicy wait_policy(int ranks, int cores);

/// Cores that this thread may run on (affinity mask).
int usable_cores();

/// A counter that one rank raises and others wait for; lives in shared memory, all zeros at birth.
/// Only flags cross processes: no lock is ever shared.
struct alignas(64) Flag {
  std::atomic<std::uint32_t> value{0};  ///< written by its owner only; also the futex word
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
