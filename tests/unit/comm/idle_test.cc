// What waiting costs: ranks that have nothing to do leave the cores to the one that has.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr int kRanks = 8;
constexpr int kRounds = 5;
constexpr double kBusy = 0.1;  // seconds
/// Waking an idle virtual CPU alone takes 50 to 250 us; a wake-up that is lost takes 20 ms.
constexpr double kLongestWake = 2e-3;
/// Share of a core that all waiters may use. Virtual machines differ: a sleep of 20 ms costs 10 to
/// 60 us of a virtual CPU, and what is not asleep runs 3 times slower under the sanitizer.
#ifdef __SANITIZE_ADDRESS__
constexpr double kMostCpu = 0.08;
#else
constexpr double kMostCpu = 0.02;
#endif

double seconds_of(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double now() { return seconds_of(CLOCK_MONOTONIC); }

struct Idleness {
  double cpu = 0;          ///< of all waiters, over the time waited
  double wake_median = 0;  ///< seconds from the last rank's arrival until a waiter is back
};

/// Rank 0 comes late to `meet`, having kept a core busy; the others wait for it.
Idleness wait_for_a_busy_rank(const std::function<Status(Communicator&)>& meet) {
  std::mutex mutex;
  double cpu = 0;
  std::vector<double> wakes;
  std::atomic<double> arrived{0};
  on_ranks(kRanks, [&](Communicator& c) {
    EXPECT_OK(meet(c));  // the first of a kind also compiles its plan
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_OK(c.barrier(Deadline::after(std::chrono::seconds(20))));
      const double begin = now(), cpu_begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      if (c.rank() == 0) {
        while (now() < begin + kBusy) {
        }
        arrived = now();
      }
      EXPECT_OK(meet(c));
      const double woken = now() - arrived;
      const double used = seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu_begin;
      if (c.rank() == 0) continue;
      const std::lock_guard lock(mutex);
      wakes.push_back(woken);
      cpu += used;
    }
  });
  std::nth_element(wakes.begin(), wakes.begin() + wakes.size() / 2, wakes.end());
  return {cpu / (kRounds * kBusy), wakes[wakes.size() / 2]};
}

/// The targets are 2 % and 50 us. Others on the machine only add to both, for seconds at a time, so
/// the best of some attempts counts; a wake-up has room besides.
void expect_idle(const std::function<Status(Communicator&)>& meet) {
  Idleness best{1, 1};
  for (int attempt = 0; attempt < 20; ++attempt) {
    const Idleness i = wait_for_a_busy_rank(meet);
    best.cpu = std::min(best.cpu, i.cpu);
    best.wake_median = std::min(best.wake_median, i.wake_median);
    if (best.cpu <= kMostCpu && best.wake_median <= kLongestWake) break;
  }
  ::testing::Test::RecordProperty("cpu", std::to_string(best.cpu));
  ::testing::Test::RecordProperty("wake_median", std::to_string(best.wake_median));
  EXPECT_LE(best.cpu, kMostCpu) << "share of a core that 7 waiters used together";
  EXPECT_LE(best.wake_median, kLongestWake) << "seconds";
}

TEST(Idle, WaitersLeaveTheCoresToTheBusyRankAndWakeAtOnce) {
  expect_idle([](Communicator& c) { return c.barrier(Deadline::after(std::chrono::seconds(20))); });
}

TEST(Idle, InAnAllReduceToo) {
  expect_idle([](Communicator& c) {
    float x = 1;
    return c.all_reduce(buffer_of(std::span(&x, 1)), ReduceOp::kSum,
                        Deadline::after(std::chrono::seconds(20)));
  });
}

}  // namespace
}  // namespace stormo::comm
