#include <stormo/analysis/diff.h>

#include <gtest/gtest.h>
#include <stormo/schedule/builders.h>

namespace stormo::analysis {
namespace {

using plan::ActionKind;
using plan::Schedule;
using plan::StepPlan;

TEST(Diff, EqualSchedulesHaveNone) {
  for (const schedule::Builder& b : schedule::builders()) {
    EXPECT_EQ(diff(b.build(4).take_or_throw(), b.build(4).take_or_throw()), "");
  }
}

TEST(Diff, NamesRoundsAndTransfers) {
  const Schedule a = schedule::ring_reduce_scatter(3);
  Schedule b = a;
  b.name = "mine";
  b.rounds[0][1].chunk = 1;
  std::swap(b.rounds[1][0], b.rounds[1][1]);
  b.rounds.push_back(b.rounds[0]);
  EXPECT_EQ(diff(a, b),
            "- schedule v1 ring_reduce_scatter reduce_scatter ranks=3 chunks=3\n"
            "+ schedule v1 mine reduce_scatter ranks=3 chunks=3\n"
            "- round 0: 1>2 +c0\n"
            "+ round 0: 1>2 +c1\n"
            "~ round 1: the same transfers in another order\n"
            "+ round 2 (3 transfers)\n");
  EXPECT_EQ(diff(a, b, 2),
            "- schedule v1 ring_reduce_scatter reduce_scatter ranks=3 chunks=3\n"
            "+ schedule v1 mine reduce_scatter ranks=3 chunks=3\n"
            "... and 4 more differences\n");
}

TEST(Diff, CountsRepeatedTransfers) {
  const Schedule a = schedule::star_all_reduce(2);
  Schedule b = a;
  b.rounds[0].push_back(b.rounds[0][0]);
  EXPECT_EQ(diff(a, b), "+ round 0: 1>0 +c0\n");
  EXPECT_EQ(diff(b, a), "- round 0: 1>0 +c0\n");
}

StepPlan sample() {
  return {"one_device",
          {},
          {{{"all", 10, 0}}},
          {{ActionKind::kLoad},
           {ActionKind::kForward},
           {ActionKind::kLoss},
           {ActionKind::kBackward},
           {ActionKind::kUpdate}}};
}

TEST(Diff, AnInsertedActionIsOneDifference) {
  const StepPlan a = sample();
  StepPlan b = a;
  b.actions.insert(b.actions.begin() + 4, {ActionKind::kAllReduce, 0, 0, "dp"});
  b.mesh.axes.push_back({"dp", 2});
  EXPECT_EQ(diff(a, a), "");
  EXPECT_EQ(diff(a, b), "- mesh\n+ mesh dp=2\n+ action 4: all_reduce 0-0 over dp\n");
  EXPECT_EQ(diff(b, a), "- mesh dp=2\n+ mesh\n- action 4: all_reduce 0-0 over dp\n");
}

TEST(Diff, VeryLongPlansFallBackToListing) {
  StepPlan a = sample(), b = sample();
  a.actions.resize(5000, {ActionKind::kForward, 1, 2});
  b.actions.resize(5000, {ActionKind::kBackward, 1, 2});
  const std::string text = diff(a, b, 1);
  EXPECT_NE(text.find("- action 5: forward 1-2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("and 9989 more"), std::string::npos) << text;
}

}  // namespace
}  // namespace stormo::analysis
