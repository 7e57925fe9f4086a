#include <stormo/transport/memory/wait.h>

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <system_error>
#include <thread>

namespace stormo::transport {
namespace {

constexpr Duration kParkSlice = std::chrono::milliseconds(20);
/// The same where fence_others() fails and raisers may rely on it: a wake-up may be missed.
constexpr Duration kUnfencedSlice = std::chrono::milliseconds(1);

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

int membarrier(int command) { return static_cast<int>(syscall(SYS_membarrier, command, 0, 0)); }

/// Whether this process takes part in the fences that others ask for.
enum class Fencing { kNotAsked, kAsked, kOn };
std::atomic<Fencing> fencing{Fencing::kNotAsked};

/// The kernel waits for all cores, 10 to 20 ms, if the process has threads. So a thread waits for
/// the kernel. Without it everything goes on as until then: each raise() has its own fence.
void ask_for_fences() noexcept {
  try {
    std::thread([] {
      if (membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0) fencing.store(Fencing::kOn);
    }).detach();
  } catch (const std::system_error&) {
  }
}

bool can_be_fenced() {
  if (fencing.load(std::memory_order_acquire) == Fencing::kOn) return true;
  Fencing expected = Fencing::kNotAsked;
  if (fencing.compare_exchange_strong(expected, Fencing::kAsked)) ask_for_fences();
  return false;
}

/// A full fence on every core that runs a process which can be fenced. Costs a microsecond, and
/// spares those processes one in each raise(): 30 ns while the flag's line is elsewhere.
bool fence_others() { return membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0; }

// Not FUTEX_PRIVATE: the word is shared between processes.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration at_most) {
  const auto ns = at_most.count();
  const timespec t{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

WaitPolicy wait_policy(int ranks, int cores) {
  using std::chrono::microseconds;
  if (ranks <= cores) return {.loads = 2048, .spin = microseconds(5), .yield = microseconds(2000)};
  return {.loads = 0, .spin = Duration{0}, .yield = microseconds(200), .min_pauses = 0};
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

void Flag::raise(std::uint32_t to) {
  // A fence between the two: either the waiter sees the new value or we see it parked. The waiter
  // asks for ours, because it has the time.
  if (can_be_fenced()) {
    value.store(to, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    value.store(to, std::memory_order_seq_cst);
  }
  if (parked.load(std::memory_order_seq_cst) != 0) futex_wake_all(value);
}

void Flag::ring() {
  value.fetch_add(1, std::memory_order_seq_cst);
  if (parked.load(std::memory_order_seq_cst) != 0) futex_wake_all(value);
}

Status wait_for(Flag& flag, std::uint32_t target, const WaitBounds& bounds) {
  if (look_for(flag, target, bounds.policy)) return {};
  for (int i = 0; i < bounds.policy.min_pauses; ++i) {
    if (reached(flag.load(), target)) return {};
    pause_cpu();
  }
  const TimePoint start = std::chrono::steady_clock::now();
  Duration waited{0};
  while (waited < bounds.policy.spin + bounds.policy.yield) {
    if (reached(flag.load(), target)) return {};
    if (waited < bounds.policy.spin) {
      for (int i = 0; i < 4; ++i) pause_cpu();
    } else {
      sched_yield();
    }
    waited = std::chrono::steady_clock::now() - start;
  }
  for (;;) {
    flag.parked.fetch_add(1, std::memory_order_seq_cst);
    // who cannot be fenced fences itself
    const Duration slice = fence_others() || !can_be_fenced() ? kParkSlice : kUnfencedSlice;
    const std::uint32_t seen = flag.value.load(std::memory_order_seq_cst);
    if (!reached(seen, target)) {
      futex_wait(flag.value, seen, std::min(slice, bounds.by.remaining()));
    }
    flag.parked.fetch_sub(1, std::memory_order_seq_cst);
    if (reached(flag.load(), target)) return {};
    if (bounds.health.failed()) return bounds.health.status();
    if (bounds.by.expired()) return {Code::kDeadlineExceeded, "the caller's deadline passed"};
  }
}

}  // namespace stormo::transport
