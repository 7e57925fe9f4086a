// Elastic training: a rank is killed at each point of a step, and of its replacement's way into the
// job. The weights are those of one process, to the bit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "elastic_job_of_points.h"

namespace stormo::testing {
namespace {

struct Point {
  std::string name;
  int losses = 1;
};

std::string name_of(const ::testing::TestParamInfo<Point>& of) { return of.param.name; }

void expect_the_bits_of_one_process(const Outcome& o, const Point& point,
                                    const std::string& expected) {
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.err, "the job goes on without it\n"), point.losses) << o.err;
  EXPECT_EQ(weights_of(o), expected) << o.err;
}

class DeathAt : public ::testing::TestWithParam<Point> {};

TEST_P(DeathAt, LeavesTheBitsOfOneProcess) {
  static const std::string expected = weights_of(job(1, "nowhere", "shards"));
  expect_the_bits_of_one_process(job(3, GetParam().name, "shards"), GetParam(), expected);
}

INSTANTIATE_TEST_SUITE_P(OfAStep, DeathAt,
                         ::testing::Values(Point{"reads"}, Point{"loaded"}, Point{"forward"},
                                           Point{"loss"}, Point{"backward"}, Point{"reduced"},
                                           Point{"committed"}, Point{"updated"}, Point{"agreed"},
                                           Point{"reports"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(OfAReplacement, DeathAt,
                         ::testing::Values(Point{"starts", 2}, Point{"asks", 2},
                                           Point{"receives", 2}, Point{"compared", 2}),
                         name_of);

/// Of a rank that shares one copy of parameters and optimizer state with the others.
class DeathOfASharerAt : public ::testing::TestWithParam<Point> {};

TEST_P(DeathOfASharerAt, LeavesTheBitsOfOneProcess) {
  static const std::string expected = weights_of(job(1, "nowhere", "shared"));
  expect_the_bits_of_one_process(job(3, GetParam().name, "shared"), GetParam(), expected);
}

INSTANTIATE_TEST_SUITE_P(OfAStep, DeathOfASharerAt,
                         ::testing::Values(Point{"reads"}, Point{"loaded"}, Point{"forward"},
                                           Point{"loss"}, Point{"backward"}, Point{"published"},
                                           Point{"committed"}, Point{"written"}, Point{"updated"},
                                           Point{"shared"}, Point{"agreed"}, Point{"reports"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(OfAReplacement, DeathOfASharerAt,
                         ::testing::Values(Point{"starts", 2}, Point{"asks", 2},
                                           Point{"receives", 2}, Point{"compared", 2}),
                         name_of);

class DeathOfASharerOnTwoHostsAt : public ::testing::TestWithParam<Point> {};

TEST_P(DeathOfASharerOnTwoHostsAt, LeavesTheBitsOfOneProcess) {
  static const std::string expected = weights_of(job(1, "nowhere", "shared"));
  const FakeShell shell(kRunHere);
  const Outcome o =
      job(4, GetParam().name, "shared", {"hosts=alpha:2,beta:2", "shell=" + shell.script()});
  expect_the_bits_of_one_process(o, GetParam(), expected);
}

INSTANTIATE_TEST_SUITE_P(OfAStep, DeathOfASharerOnTwoHostsAt,
                         ::testing::Values(Point{"backward"}, Point{"reduced"}, Point{"committed"},
                                           Point{"written"}, Point{"updated"}, Point{"shared"},
                                           Point{"agreed"}),
                         name_of);

TEST(WithoutADeath, TheBitsAreThoseOfOneProcessToo) {
  for (const std::string kind : {"shards", "shared"}) {
    const Outcome o = job(4, "nowhere", kind);
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(weights_of(o), weights_of(job(1, "nowhere", kind))) << kind;
  }
}

}  // namespace
}  // namespace stormo::testing
