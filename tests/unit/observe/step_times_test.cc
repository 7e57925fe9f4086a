#include <gtest/gtest.h>

#include <stormo/observe/step_times.h>

namespace stormo::observe {
namespace {

TEST(StepTimes, ABucketCountsTimesUpToItsBound) {
  StepTimes times;
  EXPECT_EQ(times.steps(), 0u);
  times.add(0.0001, 1);  // exactly the first bound
  times.add(0.00011, 1);
  times.add(0.3, 3);  // three of 0.1 s
  times.add(1000, 1);
  EXPECT_EQ(times.counts.front(), 1u);
  EXPECT_EQ(times.counts[1], 1u);
  EXPECT_EQ(times.counts.back(), 1u);
  EXPECT_EQ(times.steps(), 6u);
  EXPECT_DOUBLE_EQ(times.seconds, 1000.30021);
}

}  // namespace
}  // namespace stormo::observe
