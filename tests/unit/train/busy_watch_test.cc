// When a rank takes the machine for busy, and what it says.
#include <stormo/train/world/busy_watch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>

namespace stormo::train {
namespace {

TEST(BusyJudge, OneBadMomentSaysYesAndTwoGoodSecondsSayNo) {
  ThreadTimes t{.ran = 5, .waited = 5};
  BusyJudge judge(t);  // what was before does not count
  const auto after = [&](double ran, double waited) {
    t.ran += ran;
    t.waited += waited;
    return judge.is_busy(t);
  };
  EXPECT_FALSE(after(0.1, 0.01));
  EXPECT_FALSE(after(0.001, 0.009));  // it had nothing to do
  EXPECT_TRUE(after(0.05, 0.05));
  EXPECT_DOUBLE_EQ(judge.waiting_share(), 0.5);
  for (int i = 0; i < 19; ++i) EXPECT_TRUE(after(0.1, 0.001)) << i;
  EXPECT_TRUE(after(0.1, 0.01));  // neither good nor bad
  for (int i = 0; i < 19; ++i) EXPECT_TRUE(after(0.1, 0.001)) << i;
  EXPECT_FALSE(after(0.1, 0.001));
  t = {.ran = 1, .waited = 1};  // many threads have ended
  EXPECT_FALSE(judge.is_busy(t));
}

/// Threads that compute on the core of the calling thread, so that all of them wait for it.
class CrowdedCore {
 public:
  CrowdedCore() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    for (int i = 0; i < 3; ++i) {
      threads_.emplace_back([this] {
        while (!over_) {
        }
      });
    }
  }
  ~CrowdedCore() {
    over_ = true;
    for (std::thread& t : threads_) t.join();
    sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_{};
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

TEST(BusyWatch, SaysOnceThatTheMachineIsBusy) {
  for (const int threads : {1, 2}) {
    std::promise<std::string> said;
    std::future<std::string> line = said.get_future();
    {
      const CrowdedCore core;
      const BusyWatch watch(threads, [&](const std::string& text) { said.set_value(text); });
      line.wait();
    }
    EXPECT_THAT(line.get(),
                testing::MatchesRegex("the machine is busy: this rank waited for a core "
                                      "in [0-9]+ % of its time.*"));
  }
}

}  // namespace
}  // namespace stormo::train
