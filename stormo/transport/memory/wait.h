#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/health.h>

namespace stormo::transport {

/// How long to wait actively before sleeping in the kernel. Always bounded: two ranks that spin on
/// one core cost milliseconds per message.
struct WaitPolicy {
  int loads = 0;      ///< first, number of loads of the flag without a pause
  Duration spin{0};   ///< then pause instructions
  Duration yield{0};  ///< then sched_yield
  int min_pauses = 20;
  bool operator==(const WaitPolicy&) const = default;
};

/// If each rank has a core: spin for microseconds, then yield for 2 ms, then sleep in the kernel.
/// The times of ranks in a training step differ by about 2 ms, and a sleeping core takes 0.1 to 1
/// ms to wake in a virtual machine. With fewer cores than ranks: yield for 0.2 ms, then sleep. A
/// rank that yields gives its core to ranks that have work, without the cost of a sleep and a
/// wake-up. If ranks slept immediately, they would have to wake each other at every barrier.
WaitPolicy wait_policy(int ranks, int cores);

/// Cores that this thread may run on (affinity mask).
int usable_cores();

/// A counter in shared memory that one rank raises and others wait for; initially zero. Processes
/// synchronise only by flags, never by shared locks.
struct alignas(64) Flag {
  static constexpr std::size_t kBesideBytes = 56;

  std::atomic<std::uint32_t> value{0};  ///< written by its owner only; also the futex word
  /// Rest of the value's cache line. Data that the owner writes here before it raises the flag
  /// reach the waiters together with the value, at no extra cost.
  alignas(8) std::array<std::byte, kBesideBytes> beside{};
  alignas(64) std::atomic<std::uint32_t> parked{0};  ///< number of waiters that sleep on `value`

  std::uint32_t load() const { return value.load(std::memory_order_acquire); }
  /// Sets the value, which must increase (modulo 2^32), and wakes sleeping waiters.
  void raise(std::uint32_t to);
  /// Adds one and wakes sleeping waiters; for flags with several writers (doorbells).
  void ring();
};

/// True when `value` has reached `target`, in modulo 2^32 arithmetic.
inline bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

/// The first part of a wait: loads the flag `policy.loads` times. True when the target was reached.
inline bool look_for(const Flag& flag, std::uint32_t target, const WaitPolicy& policy) {
  for (int i = 0; i <= policy.loads; ++i) {
    if (reached(flag.load(), target)) return true;
  }
  return false;
}

/// Other ends of a wait: the failure of the group, and the caller's deadline.
struct WaitBounds {
  const WaitPolicy& policy;
  const Health& health;
  Deadline by;
};

/// Blocks until flag >= target and returns OK; else the group's first cause, or kDeadlineExceeded.
/// A failure of the group is noticed within 20 ms.
Status wait_for(Flag& flag, std::uint32_t target, const WaitBounds& bounds);

}  // namespace stormo::transport
