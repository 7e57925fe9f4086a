#include <stormo/transport/memory/wait.h>

#include <gtest/gtest.h>

#include <thread>

namespace stormo::transport {
namespace {

constexpr Duration kLong = std::chrono::seconds(20);

TEST(Wait, ComparesModulo32Bits) {
  EXPECT_TRUE(reached(5, 5));
  EXPECT_TRUE(reached(6, 5));
  EXPECT_FALSE(reached(4, 5));
  EXPECT_TRUE(reached(2, 0xfffffff0u));
  EXPECT_FALSE(reached(0xfffffff0u, 2));
}

// With a core of its own a rank spins for microseconds only; longer it waits so that others can
// run.
TEST(Wait, NeverSpinsForLongWhenRanksShareCores) {
  EXPECT_GT(wait_policy(2, 2).spin, Duration{0});
  EXPECT_LE(wait_policy(2, 2).spin, std::chrono::microseconds(10));
  EXPECT_LE(wait_policy(2, 2).yield, std::chrono::milliseconds(2));
  EXPECT_EQ(wait_policy(3, 2).spin, Duration{0});
  // seven ranks that wait 100 ms for the eighth take at most 2 % of a core
  EXPECT_LE(7 * wait_policy(3, 2).yield, std::chrono::milliseconds(2));
}

TEST(Wait, PingPongBetweenThreadsUnderEveryPolicy) {
  for (const WaitPolicy& policy :
       {wait_policy(2, 2), wait_policy(8, 1), WaitPolicy{.min_pauses = 0}}) {
    Flag ping;
    Flag pong;
    const Health health;
    constexpr std::uint32_t kRounds = 2000;
    std::thread other([&] {
      for (std::uint32_t i = 1; i <= kRounds; ++i) {
        ASSERT_TRUE(wait_for(ping, i, {policy, health, Deadline::after(kLong)}).ok());
        pong.raise(i);
      }
    });
    for (std::uint32_t i = 1; i <= kRounds; ++i) {
      ping.raise(i);
      ASSERT_TRUE(wait_for(pong, i, {policy, health, Deadline::after(kLong)}).ok());
    }
    other.join();
    EXPECT_EQ(ping.parked.load(), 0u);
  }
}

TEST(Wait, EndsAtTheDeadline) {
  Flag flag;
  const Health health;
  const WaitPolicy policy = wait_policy(2, 2);
  const auto by = Deadline::after(std::chrono::milliseconds(30));
  EXPECT_EQ(wait_for(flag, 1, {policy, health, by}).code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(by.expired());
}

TEST(Wait, EndsWithTheFirstCauseOfAFailure) {
  Flag flag;
  Health health;
  const WaitPolicy policy = wait_policy(2, 1);
  std::thread other([&] {
    EXPECT_TRUE(health.fail({Code::kIo, "first"}));
    EXPECT_FALSE(health.fail({Code::kIo, "second"}));
  });
  const Status status = wait_for(flag, 1, {policy, health, Deadline::after(kLong)});
  other.join();
  EXPECT_EQ(status.message(), "first");
}

TEST(Wait, ADoorbellCountsEveryRing) {
  Flag bell;
  std::thread a([&] {
    for (int i = 0; i < 1000; ++i) bell.ring();
  });
  std::thread b([&] {
    for (int i = 0; i < 1000; ++i) bell.ring();
  });
  const Health health;
  EXPECT_TRUE(wait_for(bell, 2000, {wait_policy(3, 1), health, Deadline::after(kLong)}).ok());
  a.join();
  b.join();
  EXPECT_EQ(bell.load(), 2000u);
}

}  // namespace
}  // namespace stormo::transport
