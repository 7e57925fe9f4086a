// What waiting costs: ranks that have nothing to do leave the cores to the one that has. Both its
// price and its length depend on the host, and on who else uses it. So threads that only sleep in
// the kernel, as the waiters should, are measured in the same rounds: the waiters may cost a few
// times as much, and be late a few times as long.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <mutex>

#include <stormo/transport/memory/wait.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr int kRanks = 8;
constexpr int kWaiters = kRanks - 1;
constexpr int kRounds = 10;
constexpr double kBusy = 0.1;  // seconds
/// A wake-up that is lost is made good by the next look, 10 ms later in the middle.
constexpr double kSlice = 0.02;
constexpr double kLate = 2e-3;
constexpr double kTimes = 5;

double seconds_of(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double now() { return seconds_of(CLOCK_MONOTONIC); }

/// What threads took to wait for rank 0, round by round.
class Waits {
 public:
  void add(double cpu, double late) {
    const std::lock_guard lock(mutex_);
    cpu_ += cpu;
    late_.push_back(late);
  }
  double cpu() const { return cpu_; }  ///< seconds of all
  /// Seconds from the event until a thread was back, in the middle.
  double late() {
    const auto middle = late_.begin() + static_cast<std::ptrdiff_t>(late_.size() / 2);
    std::nth_element(late_.begin(), middle, late_.end());
    return *middle;
  }

 private:
  std::mutex mutex_;
  double cpu_ = 0;            // guarded by mutex_
  std::vector<double> late_;  // guarded by mutex_
};

/// As many threads as there are waiters, which sleep in the kernel and look every 20 ms.
class Sleepers {
 public:
  Sleepers() {
    for (int i = 0; i < kWaiters; ++i) threads_.emplace_back([this] { run(); });
  }
  /// After the last round; then all waits are known.
  void join() {
    for (std::thread& t : threads_) t.join();
  }
  /// The end of a round.
  void wake() {
    woken_at_ = now();
    word_.fetch_add(1);
    ::syscall(SYS_futex, &word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  Waits waits;

 private:
  void run() {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const double cpu_begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      while (word_.load() == round) {
        const timespec slice{0, static_cast<long>(kSlice * 1e9)};
        ::syscall(SYS_futex, &word_, FUTEX_WAIT, round, &slice, nullptr, 0);
      }
      const double late = now() - woken_at_;
      waits.add(seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu_begin, late);
    }
  }

  std::atomic<std::uint32_t> word_{0};
  std::atomic<double> woken_at_{0};
  std::vector<std::thread> threads_;  // last: they use everything above
};

/// Rank 0 comes late to `meet`, having kept a core busy; the others wait for it.
void expect_idle(const std::function<Status(Communicator&)>& meet) {
  Sleepers sleepers;
  Waits waiters;
  std::atomic<double> arrived{0};
  on_ranks(kRanks, [&](Communicator& c) {
    EXPECT_OK(meet(c));  // the first of a kind also compiles its plan
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_OK(c.barrier(Deadline::after(std::chrono::seconds(20))));
      const double begin = now(), cpu_begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      if (c.rank() == 0) {
        while (now() < begin + kBusy) {
        }
        sleepers.wake();
        arrived = now();
      }
      EXPECT_OK(meet(c));
      const double late = now() - arrived;
      if (c.rank() == 0) continue;
      waiters.add(seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu_begin, late);
    }
  });
  sleepers.join();
  // before a waiter sleeps it gives way to others for so long
  const auto policy = transport::wait_policy(kRanks, transport::usable_cores());
  const double awake = std::chrono::duration<double>(policy.spin + policy.yield).count();
  const double most_cpu = kTimes * sleepers.waits.cpu() + 2 * awake * kWaiters * kRounds;
  const double latest = kTimes * sleepers.waits.late() + kLate;
  std::printf("waiters %.4f s of CPU, %.6f s late; sleepers %.4f s, %.6f s\n", waiters.cpu(),
              waiters.late(), sleepers.waits.cpu(), sleepers.waits.late());
  EXPECT_LE(waiters.cpu(), most_cpu);
  EXPECT_LE(waiters.late(), latest);
}

TEST(Idle, WaitersLeaveTheCoresToTheBusyRankAndWakeAtOnce) {
  expect_idle([](Communicator& c) { return c.barrier(Deadline::after(std::chrono::seconds(20))); });
}

TEST(Idle, InAnAllReduceToo) {
  expect_idle([](Communicator& c) {
    float x = 1;
    return c.all_reduce(std::span(&x, 1), ReduceOp::kSum,
                        Deadline::after(std::chrono::seconds(20)));
  });
}

}  // namespace
}  // namespace stormo::comm
