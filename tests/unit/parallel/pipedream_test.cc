// Pipelines whose steps overlap, as plans. That ranks train as these plans say is tested in
// tests/unit/train/pipedream_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::StepPlan;

plan::ModelShape layers(int n, bool tied = false) {
  plan::ModelShape out;
  for (int i = 0; i < n; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".weight", 100}},
                            .flops_per_sample = 200,
                            .borrowed = {}});
  }
  if (tied) out.segments.back().borrowed = {0};
  return out;
}

StepPlan plan_of(const PipelineSchedule& schedule, int stages, int n, bool tied = false,
                 int period = 8) {
  return compose(one_device(layers(stages, tied)), micro_batches(n),
                 pipeline({.stages = stages, .schedule = schedule, .period = period}))
      .take_or_throw();
}

TEST(PipeDream, ABackwardComesAsManyMicroBatchesLaterAsThereAreStagesBehind) {
  for (const int stages : {2, 3, 5}) {
    for (const int n : {1, 2, 4, 8}) {
      for (int stage = 0; stage < stages; ++stage) {
        int forwards = 0;
        for (const Action& a : project(plan_of(pipedream(), stages, n), stage).actions) {
          if (a.kind == ActionKind::kForward) ++forwards;
          if (a.kind != ActionKind::kBackward) continue;
          EXPECT_EQ(forwards - 1 - (a.micro_batch - a.delay * n), stages - 1 - stage);
        }
      }
    }
  }
}

TEST(PipeDream, AStageUpdatesWhenItHasAllGradientsOrOneStepLater) {
  for (const int stages : {2, 3, 5}) {
    for (const int n : {1, 2, 4, 8}) {
      for (const PipelineSchedule& schedule : {pipedream(), pipedream_2bw()}) {
        if (!check(schedule, {stages, n, 1}).ok()) continue;
        for (int stage = 0; stage < stages; ++stage) {
          const auto actions = project(plan_of(schedule, stages, n), stage).actions;
          const auto update = std::ranges::find(actions, ActionKind::kUpdate, &Action::kind);
          ASSERT_NE(update, actions.end());
          const int lacking = (stages - 1 - stage + n - 1) / n;
          EXPECT_EQ(update->delay, schedule.name == "pipedream" ? lacking : 1);
          EXPECT_EQ(std::ranges::count(actions, ActionKind::kUpdate, &Action::kind), 1);
        }
      }
    }
  }
}

// Stage s keeps p-s versions; with double-buffered updates all keep 2.
TEST(PipeDream, AStageKeepsVersionsOfItsParameters) {
  constexpr std::int64_t kBytes = 100 * 4;
  for (const int stages : {2, 3, 5}) {
    // the first stage has most versions
    const analysis::StepMemory of = analysis::memory(plan_of(pipedream(), stages, 1), {});
    EXPECT_EQ(of.stage, 0);
    EXPECT_EQ(of.between_steps.parameters, kBytes);
    EXPECT_EQ(of.peak.parameters, stages * kBytes);
    for (const int n : {stages, 2 * stages}) {
      EXPECT_EQ(analysis::memory(plan_of(pipedream_2bw(), stages, n), {}).peak.parameters,
                2 * kBytes);
    }
  }
}

/// A forward of a stage takes 1, a backward 2, and nothing else takes time.
analysis::StepSimulation simulated(const StepPlan& p, int stages) {
  const auto n = static_cast<std::size_t>(stages);
  const analysis::ComputeTimes times{.forward = std::vector<double>(n, 1.0),
                                     .backward = std::vector<double>(n, 2.0)};
  return analysis::simulate(p, {stages}, {},
                            {.compute = analysis::compute_times(p, times),
                             .collective = [](auto&, auto&) { return 0.0; }})
      .take_or_throw();
}

// What stages wait for is the beginning and the end of a period.
TEST(PipeDream, NoStageWaitsBetweenDrains) {
  for (const int stages : {2, 4}) {
    for (const int period : {1, 4, 32, 200}) {
      const auto s = simulated(plan_of(pipedream(), stages, 4, /*tied=*/false, period), stages);
      EXPECT_NEAR(s.seconds, 4 * 3 + (stages - 1) * 3.0 / period, 1e-9);
      EXPECT_EQ(s.steps, std::min(period, 32));
      if (period == 200) {
        EXPECT_LT(s.idle_share(), 0.02);
      }
    }
  }
}

// The last stage waits with its backward for that of the first one, not with its forward: the step
// is T_F + T_B / 2. Without tied parameters it is half of T_F + T_B.
TEST(PipeDream, AForwardDoesNotWaitForTiedGradients) {
  constexpr int kPeriod = 1000;
  for (const bool tied : {true, false}) {
    const StepPlan p = plan_of(delayed_gradients(), 2, 1, tied, kPeriod);
    EXPECT_NEAR(simulated(p, 2).seconds, tied ? 4 : 3, 0.01);
  }
}

TEST(PipeDream, TiedParametersAreUpdatedTogether) {
  const StepPlan p = plan_of(pipedream_2bw(), 3, 4, /*tied=*/true);
  const auto sum = std::ranges::find(p.actions, ActionKind::kAllReduceTied, &Action::kind);
  ASSERT_NE(sum, p.actions.end());
  EXPECT_EQ(to_text(*sum), "all_reduce_tied 0-0 delay 1");
  EXPECT_EQ(to_text(*(sum + 1)), "update 0-0 delay 1");
  // before the last stage has gradients of the next batch
  const auto next = std::ranges::find_if(p.actions, [](const Action& a) {
    return a.kind == ActionKind::kBackward && a.range.first == 2;
  });
  EXPECT_LT(sum, next);
}

std::string refusal(const StepPlan& in, const std::vector<Pass>& passes) {
  return compose(in, passes).status().message();
}

TEST(PipeDream, SaysWhatItCannotDo) {
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const StepPlan model = one_device(layers(4, true));
  const Pass cut = pipeline({.stages = 4, .schedule = pipedream()});
  expect(refusal(model, {micro_batches(2), cut}),
         "stages 0 and 3 read the same parameter, and are several batches apart; use 'pipedream' "
         "with at least 3 micro-batches, or a model without tied weights");
  EXPECT_EQ(refusal(model, {micro_batches(3), cut}), "");
  plan::ModelShape frozen = layers(4, true);
  frozen.segments[0].parameters[0].trainable = false;
  EXPECT_EQ(refusal(one_device(frozen), {micro_batches(2), cut}), "") << "it has no gradients";
  expect(refusal(model, {micro_batches(4), clip_gradients(), cut}), "leave out clip_norm");
  expect(refusal(model, {micro_batches(4), scale_loss(), cut}), "leave out float16");
  expect(refusal(model,
                 {micro_batches(4), pipeline({.stages = 4, .schedule = pipedream(), .period = 0})}),
         "period 0");
  expect(refusal(model, {micro_batches(2), pipeline({.stages = 4, .schedule = pipedream_2bw()})}),
         "schedule 'pipedream_2bw'");
  expect(
      refusal(model, {micro_batches(4), pipeline({.stages = 4, .schedule = delayed_gradients()})}),
      "leave out train.micro_batches=4, or use 'pipedream'");
  expect(refusal(model, {micro_batches(4), pipeline({.stages = 4, .weight_stashing = false})}),
         "leave out weight_stashing");
}

std::string said(StepPlan p, const std::function<void(StepPlan&)>& change) {
  change(p);
  return analysis::verify(p).message();
}

TEST(PipeDream, VerifyRefusesGradientsOfTwoBatches) {
  const StepPlan good = plan_of(pipedream_2bw(), 2, 2);
  ASSERT_TRUE(analysis::verify(good).ok());
  const auto expect = [&](const std::function<void(StepPlan&)>& change, const std::string& part) {
    const std::string message = said(good, change);
    EXPECT_NE(message.find(part), std::string::npos) << message << to_text(good);
  };
  const auto of = [](StepPlan& p, ActionKind kind, int first) {
    return std::ranges::find_if(
        p.actions, [&](const Action& a) { return a.kind == kind && a.range.first == first; });
  };
  // the update of the last stage, behind its first backward
  expect(
      [&](StepPlan& p) {
        const auto update = of(p, ActionKind::kUpdate, 1);
        const auto backward = of(p, ActionKind::kBackward, 1);
        std::rotate(update, update + 1, backward + 1);
      },
      "of the next batch, which adds to the same gradients of parameter 1 (layer1.weight)");
  expect([&](StepPlan& p) { ++of(p, ActionKind::kUpdate, 0)->delay; }, "of the next batch");
  expect([&](StepPlan& p) { of(p, ActionKind::kForward, 0)->delay = 1; },
         "cannot come 1 step(s) after the load of its batch");
  expect([&](StepPlan& p) { of(p, ActionKind::kUpdate, 0)->delay = -1; }, "cannot come -1 step(s)");
  expect(
      [&](StepPlan& p) {
        const auto update = of(p, ActionKind::kUpdate, 0);
        std::rotate(update, update + 1, p.actions.end());
      },
      "parameter 0 (layer0.weight) is never updated");
}

// One plan: the paper's modules are stages, and its order of computing is one of many.
TEST(DelayedGradients, ArePipeDreamWithOneMicroBatch) {
  for (const int stages : {2, 3, 5}) {
    const StepPlan p = plan_of(delayed_gradients(), stages, 1);
    EXPECT_EQ(p.actions, plan_of(pipedream(), stages, 1).actions);
    for (const Action& a : p.actions) {
      if (a.kind != ActionKind::kUpdate) continue;
      EXPECT_EQ(a.delay, stages - 1 - a.range.first) << "K-k steps for module k of K, from 1";
    }
  }
}

TEST(DelayedGradients, WithoutStashedWeightsThereIsOneVersion) {
  StepPlan p = plan_of(delayed_gradients(), 3, 1);
  const auto stashed = analysis::memory(p, {}).peak;
  p.newest_weights = true;
  ASSERT_TRUE(analysis::verify(p).ok());
  EXPECT_NE(compose(p, recompute()).status().message().find("other activations than its forward"),
            std::string::npos);
  EXPECT_EQ(analysis::memory(p, {}).peak.parameters, 400);
  EXPECT_EQ(stashed.parameters, 3 * 400);
  EXPECT_EQ(analysis::memory(p, {}).peak.gradients, stashed.gradients);
  EXPECT_EQ(plan::parse_step_plan(to_text(p)).take_or_throw(), p);
  EXPECT_NE(hash(p), hash(plan_of(delayed_gradients(), 3, 1)));
}

TEST(PipeDream, TheTextFormHasDelays) {
  const StepPlan p = compose(plan_of(pipedream(), 3, 1), mirrored(2)).take_or_throw();
  EXPECT_EQ(longest_delay(p), 2);
  EXPECT_EQ(plan::parse_step_plan(to_text(p)).take_or_throw(), p);
  StepPlan other = p;
  std::ranges::find(other.actions, 2, &Action::delay)->delay = 1;
  EXPECT_NE(hash(other), hash(p));
  const auto reduce = std::ranges::find(p.actions, ActionKind::kAllReduce, &Action::kind);
  EXPECT_EQ(to_text(*reduce), "all_reduce 0-0 delay 2 over dp");
}

}  // namespace
}  // namespace stormo::parallel
