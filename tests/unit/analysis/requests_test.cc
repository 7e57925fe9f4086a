// What a rank asks its communicators for, and what that is sent as.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::ActionKind;
using plan::GoalKind;
using plan::Placement;
using plan::StepPlan;

constexpr std::int64_t kLarge = kInPlaceBytes / 4;  // of float32

/// Two small parameters and two large ones, one of them of 16 bits, averaged by action 0.
StepPlan replicas(Codec codec = Codec::kNone) {
  StepPlan p;
  p.mesh = {{{"dp", 2}}};
  p.model.segments = {{.name = "one",
                       .parameters = {{"small", kLarge - 1},
                                      {"large", kLarge},
                                      {"half", 2 * kLarge, DType::kBFloat16},
                                      {"tiny", 3}},
                       .borrowed = {}}};
  p.parameters = p.optimizer_state = p.frozen = {Placement::kReplicate};
  p.actions = {{.kind = ActionKind::kAllReduce, .range = {0, 3}, .axes = {"dp"}, .codec = codec}};
  return p;
}

TEST(Requests, LargeGradientsStayWhereTheyAreAndThoseOfTheEndComeFirst) {
  const std::vector<Collective> all = requests_of(replicas(), 0, {});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].in_place, std::vector<int>{1});
  EXPECT_EQ(all[0].packed, (std::vector<int>{3, 0}));
  EXPECT_EQ(all[0].elements, 3 + kLarge - 1 + kLarge + 3) << "with a flag for each";
  EXPECT_EQ(all[0].combine, Combine::kWeightedAverage);
  EXPECT_EQ(all[1].dtype, DType::kBFloat16);
  EXPECT_EQ(all[1].in_place, std::vector<int>{2});
}

TEST(Requests, FlagsTravelByThemselvesFromADevice) {
  const std::vector<Collective> all = requests_of(replicas(), 0, {.flags_apart = true});
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].content, Content::kFlags);
  EXPECT_EQ(all[0].elements, 3);
  EXPECT_EQ(all[0].dtype, DType::kFloat64);
  EXPECT_EQ(all[0].combine, Combine::kWeightedAverage);
  EXPECT_EQ(all[1].elements, kLarge - 1 + kLarge + 3) << "no flags among them";
}

TEST(Requests, WhatIsRoundedIsPacked) {
  const std::vector<Collective> all = requests_of(replicas(Codec::kBFloat16), 0, {});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].dtype, DType::kBFloat16);
  EXPECT_EQ(all[0].packed, (std::vector<int>{3, 1, 0}));
  EXPECT_EQ(all[1].in_place, std::vector<int>{2}) << "it has this type";
}

TEST(Requests, BlocksGoBehindWeightsAndFlags) {
  const std::vector<Collective> all = requests_of(replicas(Codec::kInt8), 0, {});
  std::vector<Content> contents;
  for (const Collective& c : all) contents.push_back(c.content);
  using enum Content;
  EXPECT_EQ(contents, (std::vector<Content>{kWeights, kFlags, kValues, kFlags, kValues}));
  EXPECT_EQ(all[2].elements, 2 * kLarge - 1 + 3) << "no flags among them";
  EXPECT_EQ(all[4].dtype, DType::kFloat32) << "also of parameters of 16 bits";
}

TEST(Requests, AWeightedAverageLearnsTheWeightsFirst) {
  Collective average = requests_of(replicas(), 0, {}).front();
  std::vector<Collective> sent = sent_as(average, 2);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].bytes(), 8);
  EXPECT_TRUE(sent[0].only_between_hosts);
  EXPECT_EQ(sent[1].bytes(), average.bytes());
  average.weights_known = true;
  EXPECT_EQ(sent_as(average, 2).size(), 1u);
}

TEST(Requests, OneRankAsksForNothing) {
  StepPlan alone = replicas();
  alone.mesh = {{{"dp", 1}}};
  EXPECT_TRUE(requests_of(alone, 0, {}).empty());
}

// No step counts the gather of what is never updated: only the first one moves anything.
TEST(Requests, WhatIsFrozenAndStaysWholeIsGatheredOnce) {
  StepPlan p = replicas();
  p.mesh = {{{"shard", 2}}};
  p.parameters = p.optimizer_state = {Placement::kShard};
  p.model.segments[0].parameters = {{"a", 32}, {"frozen", 64}};
  p.model.segments[0].parameters[1].trainable = false;
  p.actions = {{.kind = ActionKind::kAllGather, .range = {0, 1}, .axes = {"shard"}}};
  const std::vector<Collective> all = requests_of(p, 0, {});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_FALSE(all[0].once);
  EXPECT_TRUE(all[1].once);
  EXPECT_EQ(collectives_of(p, 0, {}).size(), 1u);
  p.frozen = {Placement::kShard};
  EXPECT_EQ(collectives_of(p, 0, {}).size(), 2u);
}

/// Three stages of a segment each; the last one reads the first parameter, too. Each rank has half
/// of what is split: of `tied`, of 10 elements.
StepPlan stages(ActionKind kind, plan::Range range) {
  StepPlan p;
  p.mesh = {{{"pp", 3}, {"tp", 2}}};
  p.model.segments = {
      {.name = "a", .parameters = {{"tied", 10}, {"x", 7}}, .borrowed = {}, .stage = 0},
      {.name = "b", .parameters = {{"y", 4}}, .borrowed = {}, .stage = 1},
      {.name = "c", .parameters = {{"z", 2}}, .borrowed = {0}, .stage = 2}};
  p.model.segments[0].parameters[0].split = {.dim = 0, .units = 10};
  p.parameters = p.optimizer_state = p.frozen = {Placement::kStaged, Placement::kSplit};
  p.actions = {{.kind = kind, .range = range}};
  return p;
}

TEST(Requests, StagesThatReadAParameterAddItsGradientsUpAmongThemselves) {
  const StepPlan p = stages(ActionKind::kAllReduceTied, {0, 0});
  for (const Rank rank : {0, 1, 4, 5}) {
    const std::vector<Collective> all = requests_of(project(p, rank), 0, {});
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].goal, GoalKind::kAllReduce);
    EXPECT_EQ(all[0].axes, std::vector<std::string>{"pp"});
    EXPECT_EQ(all[0].stages, (std::vector<int>{0, 2}));
    EXPECT_EQ(all[0].in_place, std::vector<int>{0});
    EXPECT_EQ(all[0].elements, 5) << "of its slice";
  }
  EXPECT_EQ(collectives_of(p, 0, {}).size(), 1u) << "once for all of them";
}

TEST(Requests, MoreThanTwoTermsOfATiedGradientAreAddedInOneOrder) {
  StepPlan p = stages(ActionKind::kAllReduceTied, {0, 0});
  EXPECT_EQ(requests_of(project(p, 0), 0, {}).at(0).algorithm, "") << "of two";
  p.model.segments[1].borrowed = {0};
  EXPECT_EQ(requests_of(project(p, 0), 0, {}).at(0).algorithm, "star_all_reduce");
}

// Of a worker that is cut, servers give each value to one rank.
TEST(Requests, WhatOneRankOfAWorkerPullsOthersGetFromIt) {
  StepPlan p = stages(ActionKind::kPull, {0, 3});
  p.mesh.axes.insert(p.mesh.axes.begin(), {"dp", 1});
  for (auto* placed : {&p.parameters, &p.optimizer_state}) {
    placed->insert(placed->begin(), Placement::kRemote);
  }
  p.frozen.insert(p.frozen.begin(), Placement::kReplicate);
  p.actions[0].axes = {"dp"};
  const std::vector<std::vector<std::vector<int>>> given = {{{1}, {0}}, {{2}}, {{3}, {0}}};
  for (int stage = 0; stage < 3; ++stage) {
    const plan::StepPlan own = project(p, 2 * stage);
    std::vector<std::vector<int>> parameters;
    const PlanRequests requests(own, {}, stage);
    for (const Collective& c : requests.of(own.actions[0])) {
      EXPECT_EQ(c.goal, GoalKind::kBroadcast);
      EXPECT_EQ(c.axes.front(), c.stages.empty() ? "tp" : "pp");
      parameters.push_back(c.in_place);
    }
    EXPECT_EQ(parameters, given[static_cast<std::size_t>(stage)]);
  }
  std::vector<std::int64_t> bytes;
  for (const Collective& c : collectives_of(p, 0, {})) bytes.push_back(c.bytes());
  EXPECT_EQ(bytes, (std::vector<std::int64_t>{4 * 7, 4 * 4, 4 * 2, 4 * 5}));
}

TEST(Requests, OfEveryActionOfAPlan) {
  StepPlan p = replicas();
  const plan::Action all = p.actions.front();
  plan::Action ends = all, coded = all;
  ends.range = {1, 3};
  coded.codec = Codec::kInt8;  // of the same range
  p.actions = {all, ends, coded};
  const PlanRequests requests(p);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    EXPECT_EQ(requests.of(p.actions[i]), requests_of(p, i, {})) << i;
  }
}

}  // namespace
}  // namespace stormo::analysis
