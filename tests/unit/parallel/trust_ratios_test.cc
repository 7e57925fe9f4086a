// Update rules that need norms of whole parameters (LARS, LAMB): who adds up what.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/trust_ratios.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/strategy/strategy.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::StepPlan;
using Axes = std::vector<std::string>;

/// Four layers of a split weight and a whole bias; the last one has no bias.
plan::ModelShape model() {
  plan::ModelShape out;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".weight", 64}, {name + ".bias", 8}},
                            .flops_per_sample = 128,
                            .borrowed = {},
                            .heads = 8,
                            .positions = 8,
                            .keys = 16});
    out.segments.back().parameters[0].split = {.units = 8};
    if (i < 3) out.segments.back().sums.forward = {8};
    if (i > 0) out.segments.back().sums.backward = {8};
  }
  out.segments.back().parameters.pop_back();
  out.segments.back().splits_output = true;
  return out;
}

StepPlan plan_of(int ranks, const Strategy& s) {
  return plan_for(s, model(), {.ranks_per_host = {ranks}},
                  {.micro_batches = 2, .trust_ratios = true})
      .take_or_throw();
}

std::size_t update_of(const StepPlan& p) {
  const auto update = std::ranges::find(p.actions, ActionKind::kUpdate, &Action::kind);
  return static_cast<std::size_t>(update - p.actions.begin());
}

TEST(TrustRatios, AreSumsOverAllThatHavePartsOfAParameter) {
  using enum Strategy::Kind;
  const std::vector<std::pair<Strategy, Axes>> ways = {
      {{.kind = kDdp, .parameters = Strategy::Parameters::kReplicated}, {}},
      {{.kind = kFsdp, .parameters = Strategy::Parameters::kSharded}, {"shard"}},
      {{.pipeline = 2}, {}},
      {{.context = 2}, {}},
      {{.tensor = 2}, {"tp"}},
      {{.tensor = 8}, {"tp"}},
      {{.pipeline = 2, .tensor = 2, .context = 2}, {"tp"}},
      {{.tensor = 4, .sequence_parallel = true}, {"tp"}},
      {{.kind = kFsdp, .tensor = 2}, {"shard", "tp"}},
      {{.kind = kFsdp, .stage = 1, .pipeline = 2, .tensor = 2}, {"shard", "tp"}},
      {{.kind = kFsdp, .stage = 2, .tensor = 2, .context = 2}, {"shard", "tp"}}};
  for (const auto& [strategy, axes] : ways) {
    const StepPlan p = plan_of(8, strategy);
    EXPECT_EQ(p.actions[update_of(p)].axes, axes) << p.strategy;
    EXPECT_EQ(owner_axes(p), axes) << p.strategy;
    EXPECT_TRUE(analysis::verify(p).ok()) << p.strategy;
  }
}

// Two numbers for each parameter that a rank has, split or not.
TEST(TrustRatios, SendTwoNumbersForEachParameter) {
  const StepPlan p =
      plan_of(8, {.kind = Strategy::Kind::kFsdp, .stage = 1, .pipeline = 2, .tensor = 2});
  const auto sums = analysis::collectives_of(p, update_of(p), {});
  ASSERT_EQ(sums.size(), 2U);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(sums[stage].goal, plan::GoalKind::kAllReduce);
    EXPECT_EQ(sums[stage].elements, stage == 0 ? 2 * 4 : 2 * 3);
    EXPECT_EQ(sums[stage].dtype, DType::kFloat64);
    EXPECT_EQ(sums[stage].axes, (Axes{"shard", "tp"}));
    EXPECT_EQ(sums[stage].stages, std::vector<int>{static_cast<int>(stage)});
  }
}

TEST(TrustRatios, VerifyRefusesSumsOverOtherRanks) {
  const StepPlan good = plan_of(
      16, {.kind = Strategy::Kind::kFsdp, .stage = 1, .pipeline = 2, .tensor = 2, .context = 2});
  const std::vector<std::pair<Axes, std::string>> wrong = {
      {{"shard"}, "leaves out the parts of other ranks of tp"},
      {{"tp"}, "leaves out the parts of other ranks of shard"},
      {{"shard", "tp", "pp"}, "the ranks of 'pp' have different parts of the model"},
      {{"shard", "tp", "cp"}, "adds up what all ranks of cp have"}};
  for (const auto& [axes, why] : wrong) {
    StepPlan p = good;
    p.actions[update_of(p)].axes = axes;
    EXPECT_NE(analysis::verify(p).message().find(why), std::string::npos)
        << analysis::verify(p).message();
  }
}

}  // namespace
}  // namespace stormo::parallel
