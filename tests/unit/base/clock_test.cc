#include <gtest/gtest.h>

#include <stormo/base/clock.h>

namespace stormo {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(ManualClock, MovesOnlyWhenTold) {
  ManualClock clock;
  const TimePoint start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(milliseconds(250));
  clock.advance(milliseconds(750));
  EXPECT_EQ(clock.now() - start, std::chrono::seconds(1));
}

TEST(RealClock, NeverGoesBack) {
  const RealClock clock;
  TimePoint last = clock.now();
  for (int i = 0; i < 1000; ++i) {
    const TimePoint now = clock.now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Deadline, NeverHasNoEnd) {
  const Deadline never = Deadline::never();
  EXPECT_TRUE(never.is_never());
  EXPECT_FALSE(never.expired());
  EXPECT_EQ(never.remaining(), Duration::max());
}

TEST(Deadline, OfThePastIsExpiredAndHasNothingLeft) {
  const Deadline past = Deadline::at(std::chrono::steady_clock::now() - milliseconds(1));
  EXPECT_TRUE(past.expired());
  EXPECT_EQ(past.remaining(), Duration::zero());
  EXPECT_TRUE(Deadline::after(Duration::zero()).expired());
  EXPECT_TRUE(Deadline::after(milliseconds(-5)).expired());
}

TEST(Deadline, OfTheFutureCountsDown) {
  const Deadline future = Deadline::after(hours(1));
  EXPECT_FALSE(future.is_never());
  EXPECT_FALSE(future.expired());
  EXPECT_GT(future.remaining(), std::chrono::minutes(50));
  EXPECT_LE(future.remaining(), hours(1));
}

TEST(Deadline, BeyondTheRangeOfTimeIsNever) {
  EXPECT_TRUE(Deadline::after(Duration::max()).is_never());
}

}  // namespace
}  // namespace stormo
