// Elastic training with logical shards: a rank is killed at each point of a step, and of its
// replacement's way into the job. The weights are those of one process, to the bit.
#include <gtest/gtest.h>

#include <string>

#include "elastic_job_of_points.h"

namespace stormo::testing {
namespace {

struct Point {
  std::string name;
  int losses = 1;
};

class DeathAt : public ::testing::TestWithParam<Point> {};

TEST_P(DeathAt, LeavesTheBitsOfOneProcess) {
  static const std::string expected = weights_of(job(1, "nowhere"));
  const Outcome o = job(3, GetParam().name);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.err, "the job goes on without it\n"), GetParam().losses) << o.err;
  EXPECT_EQ(weights_of(o), expected) << o.err;
}

INSTANTIATE_TEST_SUITE_P(OfAStep, DeathAt,
                         ::testing::Values(Point{"reads"}, Point{"loaded"}, Point{"forward"},
                                           Point{"loss"}, Point{"backward"}, Point{"reduced"},
                                           Point{"committed"}, Point{"updated"}, Point{"agreed"},
                                           Point{"reports"}),
                         [](const auto& of) { return of.param.name; });
INSTANTIATE_TEST_SUITE_P(OfAReplacement, DeathAt,
                         ::testing::Values(Point{"starts", 2}, Point{"asks", 2},
                                           Point{"receives", 2}, Point{"compared", 2}),
                         [](const auto& of) { return of.param.name; });

TEST(WithoutADeath, TheBitsAreThoseOfOneProcessToo) {
  const Outcome o = job(4, "nowhere");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(weights_of(o), weights_of(job(1, "nowhere")));
}

}  // namespace
}  // namespace stormo::testing
