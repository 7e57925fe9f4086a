// Vertical sharding as plans: who has which columns, what is sent, and what is refused. That ranks
// do what these plans say is tested in tests/unit/train/vertical_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/inside_layers/vertical.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::ActionKind;
using plan::StepPlan;

/// Layers of 6 columns, 5 hidden units and 3 outputs, of which ranks can have columns.
plan::ModelShape mlp() {
  plan::ModelShape out;
  out.segments.push_back({.name = "layer0",
                          .parameters = {{"layer0.weight", 30}, {"layer0.bias", 5}},
                          .flops_per_sample = 60,
                          .borrowed = {}});
  out.segments.back().parameters[0].split = {.dim = 1, .units = 6};
  out.segments.back().sums.forward = {5};
  out.segments.push_back({.name = "layer1",
                          .parameters = {{"layer1.weight", 15}, {"layer1.bias", 3}},
                          .flops_per_sample = 30,
                          .borrowed = {}});
  out.segments.back().sums.loss = {4};
  return out;
}

StepPlan plan_of(const std::vector<Pass>& passes) {
  return compose(one_device(mlp()), passes).take_or_throw();
}

TEST(Vertical, APlanSaysWhoHasColumnsAndLabels) {
  const StepPlan p =
      plan_of({clip_gradients(), vertical({.ranks = 3, .labels = 1, .columns = {1, 3, 2}})});
  const std::string text = to_text(p);
  for (const char* line :
       {"+vertical\n", "mesh tp=3\n", "step micro_batches=1 clipped labels 1\n",
        "segment 0: layer0 flops=60 sums 5\n",
        "  parameter 0: layer0.weight elements=30 type=float32 split 6 dim 1 counts 1,3,2\n",
        "segment 1: layer1 flops=30 loss_sums 4\n", "action 2: loss over tp\n", "norm over tp\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
  }
  EXPECT_EQ(*plan::parse_step_plan(text), p);
  StepPlan labels = p, counts = p;
  labels.labels = 2;
  counts.model.segments[0].parameters[0].split.counts = {2, 2, 2};
  EXPECT_NE(hash(p), hash(labels));
  EXPECT_NE(hash(p), hash(counts));
}

TEST(Vertical, ARankHasItsColumnsOfTheFirstWeightAndTheRestAsAWhole) {
  const StepPlan p = plan_of({vertical({.ranks = 3, .columns = {1, 3, 2}})});
  for (const Rank rank : {0, 1, 2}) {
    const StepPlan own = project(p, rank);
    EXPECT_EQ(own.actions, p.actions);
    EXPECT_EQ(own.model.segments[0].parameters[0].elements, std::vector({5, 15, 10})[rank]);
    EXPECT_EQ(own.model.segments[0].parameters[1].elements, 5);
    EXPECT_EQ(*plan::parse_step_plan(to_text(own)), own);
    EXPECT_EQ(data_part(p.mesh, rank), (plan::Part{0, 1}));  // all compute the same samples
  }
  // memory is that of the rank that needs most: 15 + 5 + 15 + 3 numbers of 4 bytes
  EXPECT_EQ(analysis::memory(p, {}).between_steps.parameters, 38 * 4);
  // 4 ranks with 6 columns: 1, 2, 1, 2
  const StepPlan even = plan_of({vertical({.ranks = 4})});
  EXPECT_EQ(project(even, 0).model.segments[0].parameters[0].elements, 5);
  EXPECT_EQ(project(even, 1).model.segments[0].parameters[0].elements, 10);
}

TEST(Vertical, SendsOneSumForwardAndTheGradientOfTheOutputBack) {
  const StepPlan p = plan_of({micro_batches(2), vertical({.ranks = 3, .labels = 2})});
  analysis::StepSizes sizes;
  sizes.samples = 7;
  std::vector<analysis::Collective> found;
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    if (p.actions[i].kind == ActionKind::kAgree) continue;
    for (const analysis::Collective& c : analysis::collectives_of(p, i, sizes)) found.push_back(c);
  }
  const std::vector<std::string> axes = {plan::kTensorAxis};
  const analysis::Collective sum{.elements = 5 * 7, .axes = axes};
  const analysis::Collective loss{
      .goal = plan::GoalKind::kBroadcast, .elements = 4 * 7, .axes = axes, .root = 2};
  EXPECT_EQ(found, (std::vector<analysis::Collective>{sum, loss, sum, loss}));
}

TEST(Vertical, RefusesWhatCannotBeCutSo) {
  const auto why = [](const plan::ModelShape& model, const VerticalOptions& options) {
    return compose(one_device(model), {vertical(options)}).status().message();
  };
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(why(mlp(), {.ranks = 1}), "give at least 2");
  expect(why(mlp(), {.ranks = 7}), "6 columns leave none for some of 7 ranks; use fewer ranks");
  expect(why(mlp(), {.ranks = 2, .labels = 2}), "labels are on rank 2, and there are ranks 0 to 1");
  for (const std::vector<std::int64_t>& counts :
       {std::vector<std::int64_t>{6}, {0, 6}, {3, 2}, {4, 3}, {2, 2, 2}, {-1, 7}}) {
    expect(why(mlp(), {.ranks = 2, .columns = counts}),
           "are not 2 ranks that have all 6 columns, and at least one each");
  }
  const auto changed = [&](const auto& change) {
    plan::ModelShape model = mlp();
    change(model.segments);
    return why(model, {.ranks = 2});
  };
  const char* no_cut = "the first layer of the model cannot be cut by columns; use an mlp";
  expect(changed([](auto& s) { s[0].parameters[0].split = {}; }), no_cut);
  expect(changed([](auto& s) { s[0].parameters[0].split.dim = 0; }), no_cut);
  expect(changed([](auto& s) { s[0].sums.forward.clear(); }), no_cut);
  expect(changed([](auto& s) { s[1].parameters[0].split.units = 3; }), no_cut);
  expect(changed([](auto& s) { s[1].splits_output = true; }), no_cut);
  expect(changed([](auto& s) { s[1].sums.loss.clear(); }), no_cut);

  const auto refused = [](const Strategy& strategy, const StepOptions& step = {}) {
    return plan_for(strategy, mlp(), {{2}}, step).status().message();
  };
  using enum Strategy::Kind;
  expect(refused({.kind = kDdp, .labels = 1}), "leave out labels and column_counts");
  expect(refused({.kind = kVertical, .parameters = Strategy::Parameters::kHostShared}),
         "leave out parameters");
  expect(refused({.kind = kVertical, .tensor = 2}), "does not cut replicas");
  expect(refused({.kind = kVertical}, {.bucket_bytes = 9}), "leave out bucket_bytes");
  EXPECT_EQ(plan_for({.kind = kVertical}, mlp(), {{1}})->strategy, "one_device");
}

TEST(Vertical, VerifyRefusesAnotherPlan) {
  const StepPlan good = plan_of({vertical({.ranks = 2, .columns = {2, 4}})});
  ASSERT_TRUE(analysis::verify(good).ok());
  const auto expect = [&](const auto& change, const char* part) {
    StepPlan p = good;
    change(p);
    const std::string message = analysis::verify(p).message();
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const auto loss = [](StepPlan& p) -> plan::Action& {
    return *std::ranges::find(p.actions, ActionKind::kLoss, &plan::Action::kind);
  };
  expect([&](StepPlan& p) { loss(p).axes.clear(); },
         "needs axis 'tp', of which one rank has the targets");
  expect([](StepPlan& p) { p.labels = -1; }, "takes no axis: each rank has the whole output");
  expect([](StepPlan& p) { p.labels = 2; }, "labels 2 is no rank of an axis 'tp'");
  expect([](StepPlan& p) { p.model.segments[1].splits_output = true; },
         "cannot have an output in parts");
  expect([](StepPlan& p) { p.model.segments[1].sums.loss.clear(); }, "(loss_sums)");
  for (const std::vector<std::int64_t>& counts :
       {std::vector<std::int64_t>{6}, {3, 2}, {4, 3}, {2, 2, 2}, {-1, 7}}) {
    expect([&](StepPlan& p) { p.model.segments[0].parameters[0].split.counts = counts; },
           "has counts that do not give its 6 units to the 2 ranks");
  }
  StepPlan alone = *compose(one_device(mlp()), {});
  alone.labels = 0;
  EXPECT_NE(analysis::verify(alone).message().find("is no rank of an axis"), std::string::npos);
}

}  // namespace
}  // namespace stormo::parallel
