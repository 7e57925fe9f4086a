// Elastic training of ranks that train on by themselves: one is killed at each point of a step and
// of an average, and of its replacement's way into the job. All end with the same weights, and with
// the loss of a run without a death.
#include <cmath>
#include <map>
#include <ostream>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "elastic_job_of_points.h"

namespace stormo::testing {
namespace {

struct Death {
  std::string kind;
  std::string point;
  int losses = 1;
};
std::ostream& operator<<(std::ostream& out, const Death& d) { return out << d.kind << d.point; }

double loss_of(const Outcome& o) {
  static const std::regex line("loss ([0-9.]+)\n");
  std::smatch found;
  return std::regex_search(o.out, found, line) ? std::stod(found[1].str()) : NAN;
}

/// Of as many ranks, none of which is lost.
double loss_without(const std::string& kind, int ranks = 3) {
  static std::map<std::string, double> known;
  const auto found = known.find(kind);
  if (found != known.end()) return found->second;
  return known[kind] = loss_of(job(ranks, "nowhere", kind));
}

void expect_loss(const Death& death, double expected, double distance) {
  const Outcome o = job(3, death.point, death.kind);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.err, "the job goes on without it\n"), death.losses) << o.err;
  EXPECT_NEAR(loss_of(o), expected, distance) << o.err;
}

class DeathOfOneByItself : public ::testing::TestWithParam<Death> {};

// Ranks compare their weights at the end.
TEST_P(DeathOfOneByItself, LeavesTheLoss) {
  expect_loss(GetParam(), loss_without(GetParam().kind), 0.03);
}

class DeathOfOneWithoutStepsOfItsOwn : public ::testing::TestWithParam<Death> {};

// Behind each average nothing is its own, and one behind each step is synchronous training. So a
// death that loses nothing leaves the numbers of one process: each sample counts once.
TEST_P(DeathOfOneWithoutStepsOfItsOwn, LeavesTheNumbersOfOneProcess) {
  expect_loss(GetParam(), loss_without("each", /*ranks=*/1), 1e-9);
}

std::string name_of(const ::testing::TestParamInfo<Death>& of) {
  return of.param.kind + "_" + of.param.point;
}

INSTANTIATE_TEST_SUITE_P(
    OfAStep, DeathOfOneByItself,
    ::testing::Values(Death{"averages", "loaded"}, Death{"averages", "backward"},
                      Death{"averages", "committed"}, Death{"averages", "updated"},
                      Death{"averages", "averages"}, Death{"averages", "averaged"},
                      Death{"averages", "agreed"}, Death{"averages", "reports"},
                      Death{"outer", "committed"}, Death{"outer", "averages"},
                      Death{"outer", "averaged"}, Death{"outer", "outer"}, Death{"gossip", "mixes"},
                      Death{"gossip", "backward"}, Death{"gossip", "committed"},
                      Death{"gossip", "averages"}),
    name_of);
INSTANTIATE_TEST_SUITE_P(OfAStep, DeathOfOneWithoutStepsOfItsOwn,
                         ::testing::Values(Death{"each", "loaded"}, Death{"each", "backward"},
                                           Death{"each", "agreed"}, Death{"each", "receives", 2}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(OfAReplacement, DeathOfOneByItself,
                         ::testing::Values(Death{"averages", "starts", 2},
                                           Death{"averages", "asks", 2},
                                           Death{"outer", "receives", 2},
                                           Death{"gossip", "compared", 2}),
                         name_of);

}  // namespace
}  // namespace stormo::testing
