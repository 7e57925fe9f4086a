#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/parallel/host_shared.h>
#include <stormo/parallel/mirrored.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/sharded.h>
#include <stormo/parallel/strategy.h>

#include "tests/golden/golden.h"

namespace stormo::parallel {
namespace {

using plan::ActionKind;
using plan::StepPlan;

plan::ModelShape shape(int segments) {
  plan::ModelShape out;
  for (int i = 0; i < segments; ++i) {
    out.segments.push_back({"layer" + std::to_string(i), 100 * (i + 1), 200 * (i + 1)});
  }
  return out;
}

TEST(OneDevice, IsAValidPlanForAnyModel) {
  for (const int segments : {1, 2, 7}) {
    const StepPlan p = one_device(shape(segments));
    EXPECT_TRUE(validate(p).ok()) << validate(p).to_string();
    EXPECT_EQ(p.mesh.size(), 1);
  }
  EXPECT_EQ(validate(one_device({})).message(), "the model has no segments");
}

TEST(OneDevice, PrintsItsKnownText) {
  testing::expect_golden("step_plan_one_device.txt", to_text(one_device(shape(3))));
}

TEST(Mirrored, PrintsItsKnownText) {
  const auto p = compose(one_device(shape(3)), mirrored(4));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  testing::expect_golden("step_plan_mirrored.txt", to_text(*p));
}

TEST(Mirrored, AddsOnlyAnAxisAndTheReductions) {
  for (const int dp : {1, 2, 5}) {
    const StepPlan before = one_device(shape(2));
    const auto p = compose(before, mirrored(dp));
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", dp}}}));
    EXPECT_EQ(p->model, before.model);
    StepPlan without = *p;
    EXPECT_EQ(std::erase_if(without.actions,
                            [](const auto& a) { return a.kind == ActionKind::kAllReduce; }),
              1u);
    EXPECT_EQ(without.actions, before.actions);
  }
}

TEST(Mirrored, ReducesEachPieceOfTheBackwardAtOnce) {
  StepPlan pieces = one_device(shape(2));
  pieces.actions[3] = {ActionKind::kBackward, 1, 1};
  pieces.actions.insert(pieces.actions.begin() + 4, {ActionKind::kBackward, 0, 0});
  const auto p = compose(pieces, mirrored(2));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->actions[4], (plan::Action{ActionKind::kAllReduce, 1, 1, "dp"}));
  EXPECT_EQ(p->actions[6], (plan::Action{ActionKind::kAllReduce, 0, 0, "dp"}));
}

TEST(Mirrored, RefusesWhatItCannotRewrite) {
  EXPECT_EQ(mirrored(0)(one_device(shape(1))).status().code(), Code::kInvalidArgument);
  const auto twice = compose(one_device(shape(1)), mirrored(2), mirrored(2));
  EXPECT_EQ(twice.status().code(), Code::kBadPlan);
  EXPECT_EQ(
      twice.status().message(),
      "after one_device+mirrored: mirrored: the mesh already has an axis 'dp'; apply it once");
}

TEST(Compose, WithoutPassesValidatesOnly) {
  const StepPlan p = one_device(shape(1));
  ASSERT_TRUE(compose(p).ok());
  EXPECT_EQ(*compose(p), p);
  EXPECT_FALSE(compose(StepPlan{}).ok());
}

TEST(Compose, StopsAtTheFirstInvalidPlan) {
  int called = 0;
  const Pass breaks = [](const StepPlan& in) -> Result<StepPlan> {
    StepPlan out = in;
    out.strategy += "+breaks";
    out.actions.pop_back();
    return out;
  };
  const Pass counts = [&](const StepPlan& in) -> Result<StepPlan> {
    ++called;
    return in;
  };
  const auto p = compose(one_device(shape(1)), breaks, counts);
  EXPECT_EQ(p.status().message(), "one_device+breaks: segment 0 is never updated");
  EXPECT_EQ(called, 0);
}

TEST(Sharded, PrintsItsKnownText) {
  for (const int stage : {1, 2, 3}) {
    const auto p = compose(one_device(shape(2)), sharded(stage, 4));
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    testing::expect_golden("step_plan_sharded" + std::to_string(stage) + ".txt", to_text(*p));
  }
}

// The elements that each kind of collective moves, over the mesh axis `axis`.
std::int64_t moved(const StepPlan& p, ActionKind kind, const std::string& axis) {
  std::int64_t elements = 0;
  for (const plan::Action& a : p.actions) {
    if (a.kind != kind || a.axis != axis) continue;
    for (int s = a.first; s <= a.last; ++s) {
      elements += p.model.segments[static_cast<std::size_t>(s)].num_parameters;
    }
  }
  return elements;
}

TEST(Sharded, MovesEveryParameterTwiceOrThrice) {
  for (const int segments : {1, 2, 7}) {
    for (const int stage : {1, 2, 3}) {
      for (const int ranks : {1, 2, 5}) {
        const auto p = compose(one_device(shape(segments)), sharded(stage, ranks));
        ASSERT_TRUE(p.ok()) << p.status().to_string();
        EXPECT_EQ(p->mesh, (plan::Mesh{{{"shard", ranks}}}));
        std::int64_t all = 0;
        for (const auto& s : p->model.segments) all += s.num_parameters;
        EXPECT_EQ(moved(*p, ActionKind::kReduceScatter, "shard"), all);
        EXPECT_EQ(moved(*p, ActionKind::kAllGather, "shard"), stage == 3 ? 2 * all : all);
        EXPECT_EQ(moved(*p, ActionKind::kAllReduce, "shard"), 0);
      }
    }
  }
}

TEST(Sharded, AfterMirroredReducesPartsOverHosts) {
  const auto p = compose(one_device(shape(2)), mirrored(2), sharded(3, 4));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", 2}, {"shard", 4}}}));
  const auto at = [&](ActionKind kind, int segment) {
    return std::find_if(p->actions.begin(), p->actions.end(), [&](const plan::Action& a) {
      return a.kind == kind && a.first <= segment && segment <= a.last;
    });
  };
  for (const int segment : {0, 1}) {
    EXPECT_LT(at(ActionKind::kReduceScatter, segment), at(ActionKind::kAllReduce, segment));
    EXPECT_LT(at(ActionKind::kAllReduce, segment), at(ActionKind::kUpdate, segment));
  }
}

TEST(Sharded, RefusesWhatCannotBe) {
  EXPECT_EQ(sharded(0, 2)(one_device(shape(1))).status().message(),
            "sharded: stage 0; give 1, 2 or 3");
  EXPECT_EQ(sharded(3, 0)(one_device(shape(1))).status().message(),
            "sharded: 0 ranks; give at least 1");
  EXPECT_EQ(compose(one_device(shape(1)), sharded(3, 2), sharded(3, 2)).status().message(),
            "after one_device+sharded3: sharded: the mesh already has an axis 'shard'; apply it "
            "once");
}

std::string passes(const Strategy& strategy, std::vector<int> hosts, bool can_share = true) {
  const auto p = plan_for(strategy, shape(2), {std::move(hosts), can_share});
  return p.ok() ? p->strategy : p.status().message();
}

TEST(StrategyByName, IsOneDeviceOnOneRank) {
  for (std::size_t k = 0; k < strategy_names().size(); ++k) {
    EXPECT_EQ(passes({.kind = static_cast<Strategy::Kind>(k)}, {1}), "one_device");
  }
}

TEST(StrategyByName, SharesAHostsMemoryWhereThatIsPossible) {
  using enum Strategy::Kind;
  using enum Strategy::Parameters;
  const std::string replicated = "one_device+mirrored", shared = "one_device+host_shared";
  EXPECT_EQ(passes({.kind = kMirrored}, {4}), replicated);
  EXPECT_EQ(passes({.kind = kCentralStorage}, {4}), shared);
  EXPECT_EQ(passes({.kind = kDdp}, {4}), shared);
  EXPECT_EQ(passes({.kind = kDdp}, {2, 2}), shared);
  EXPECT_EQ(passes({.kind = kDdp}, {1, 1}), replicated);
  EXPECT_EQ(passes({.kind = kDdp}, {2, 1}), replicated);
  EXPECT_EQ(passes({.kind = kDdp}, {4}, /*can_share=*/false), replicated);
  EXPECT_EQ(passes({.kind = kDdp, .parameters = kReplicated}, {4}), replicated);
  EXPECT_EQ(passes({.kind = kFsdp}, {4}), shared);
  EXPECT_EQ(passes({.kind = kFsdp}, {2, 2}), "one_device+sharded3");
  EXPECT_EQ(passes({.kind = kFsdp, .hybrid = true}, {2, 2}), shared);
  EXPECT_EQ(passes({.kind = kFsdp, .parameters = kSharded, .stage = 1}, {4}),
            "one_device+sharded1");
  EXPECT_EQ(passes({.kind = kFsdp, .parameters = kSharded, .stage = 2, .hybrid = true}, {2, 2}),
            "one_device+mirrored+sharded2");
}

TEST(StrategyByName, SaysWhatFitsInstead) {
  using enum Strategy::Kind;
  using enum Strategy::Parameters;
  using ::testing::HasSubstr;
  EXPECT_THAT(passes({.kind = kOneDevice}, {2}), HasSubstr("use 'ddp'"));
  EXPECT_THAT(passes({.kind = kMirrored}, {1, 1}), HasSubstr("'multi_worker_mirrored'"));
  EXPECT_THAT(passes({.kind = kFsdp, .parameters = kReplicated}, {2}), HasSubstr("use 'ddp'"));
  EXPECT_THAT(passes({.kind = kDdp, .parameters = kSharded}, {2}), HasSubstr("use 'fsdp'"));
  EXPECT_THAT(passes({.kind = kFsdp, .stage = 4}, {2}), HasSubstr("stages 1 to 3"));
  EXPECT_THAT(passes({.kind = kCentralStorage}, {2}, false), HasSubstr("parameters=replicated"));
  EXPECT_THAT(passes({.kind = kDdp, .parameters = kHostShared}, {2, 1}),
              HasSubstr("as many ranks on one host"));
}

TEST(HostShared, PrintsItsKnownText) {
  const auto p = compose(one_device(shape(2)), host_shared(2, 2));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  testing::expect_golden("step_plan_host_shared.txt", to_text(*p));
}

}  // namespace
}  // namespace stormo::parallel
