// Pipelines as plans: the orders of the stages, what they cost, keep and wait for. That ranks do
// what these plans say is tested in tests/unit/train/model_parallel_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
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
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/project.h>

#include "pipeline_cases.h"
#include "tests/sanitized.h"
#include "tests/unit/parallel/swaps.h"

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::StepPlan;
using test::cases;
using test::layers;
using test::name_of;
using test::plan_of;
using Case = test::PipelineCase;

bool is_step(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward ||
         kind == ActionKind::kBackwardInput || kind == ActionKind::kBackwardWeight;
}

TEST(Pipeline, EachStageComputesInTheOrderOfItsSchedule) {
  for (const Case& c : cases({2, 3, 4}, {1, 2, 4, 8})) {
    const StepPlan p = plan_of(c);
    for (int stage = 0; stage < c.shape.stages; ++stage) {
      std::vector<StageStep> computed;
      for (const Action& a : project(p, stage).actions) {
        if (!is_step(a.kind)) continue;
        // one segment is one part here
        const int chunk = a.range.first / c.shape.stages;
        EXPECT_EQ(a.range.first, part_of(c.schedule.chunk_order, c.shape, stage, chunk));
        computed.push_back(
            {.kind = a.kind, .micro_batch = a.micro_batch, .chunk = chunk, .delay = a.delay});
      }
      EXPECT_EQ(computed, c.schedule.order(c.shape, stage)) << name_of(c) << " stage " << stage;
      const auto weights =
          std::ranges::count(computed, StageStep::Kind::kBackwardWeight, &StageStep::kind);
      EXPECT_EQ(computed.size(),
                2U * static_cast<unsigned>(c.shape.micro_batches * c.shape.chunks) +
                    static_cast<unsigned>(weights));
    }
  }
}

TEST(Pipeline, AStageKeepsTheActivationsThatItsScheduleSays) {
  for (const Case& c : cases({2, 4}, {1, 4, 8, 16})) {
    const StepPlan p = plan_of(c);
    for (int stage = 0; stage < c.shape.stages; ++stage) {
      int now = 0, most = 0;
      for (int step = 0; step <= longest_delay(p); ++step) {
        for (const Action& a : project(p, stage).actions) {
          if (a.delay > step) continue;
          if (a.kind == ActionKind::kForward) most = std::max(most, ++now);
          if (row_of(a.kind).adds_gradients) --now;
        }
      }
      const int m = c.shape.micro_batches;
      const int left = c.shape.stages - stage;
      const int groups = (c.shape.chunks - 1) * c.shape.stages;
      const std::map<std::string, int> kept = {
          {"gpipe", m},
          {"1f1b", left},
          {"eager_1f1b", 2 * left - 1},
          {"interleaved", groups + 2 * left - 1},  // chunks
          {"zero_bubble", c.shape.stages},
          {"zero_bubble_v", 2 * c.shape.stages},  // chunks, which are halves
          {"pipedream", left},
          {"pipedream_2bw", left},
          {"ddg", left}};
      const int of_a_step = c.schedule.overlap ? left : m * c.shape.chunks;
      EXPECT_EQ(most, std::min(of_a_step, kept.at(c.schedule.name)))
          << name_of(c) << " stage " << stage;
    }
  }
}

TEST(Pipeline, TheMemoryOfTheFirstStageHasItsActivations) {
  const Case deep{one_forward_one_backward(), {4, 16, 1}};
  const Case all{gpipe(), {4, 16, 1}};
  const std::vector<std::int64_t> activations(4, 1000);
  const auto memory_of = [&](const Case& c) {
    return analysis::memory(plan_of(c), {.optimizer_numbers = 2, .activations = activations});
  };
  EXPECT_EQ(memory_of(deep).peak.activations, 4 * 1000);
  EXPECT_EQ(memory_of(deep).stage, 0);
  EXPECT_EQ(memory_of(all).peak.activations, 16 * 1000);
  // a quarter of the parameters, and of what belongs to them
  EXPECT_EQ(memory_of(deep).between_steps.parameters, 110 * 4);
  EXPECT_EQ(memory_of(deep).between_steps.optimizer_state, 2 * 110 * 4);
}

TEST(Pipeline, IdleShareIsThatOfTheFormula) {
  for (const Case& c : cases({2, 4, 8}, {4, 8, 16, 32})) {
    const StepPlan p = plan_of(c);
    const auto n = static_cast<std::size_t>(c.shape.stages * c.shape.chunks);
    const analysis::ComputeTimes times{.forward = std::vector<double>(n, 1e-3),
                                       .backward = std::vector<double>(n, 2e-3)};
    const auto s = analysis::simulate(p, {c.shape.stages}, {},
                                      {.compute = analysis::compute_times(p, times),
                                       .collective = [](auto&, auto&) { return 0.0; }})
                       .take_or_throw();
    // in times of a forward and backward of a stage, for f = b = w
    const double stages = c.shape.stages - 1;
    const std::map<std::string, double> waits = {{"zero_bubble", stages / 3},
                                                 {"zero_bubble_v", stages / 6},
                                                 {"pipedream", stages / Pipeline().period},
                                                 {"pipedream_2bw", stages / Pipeline().period}};
    const auto found = waits.find(c.schedule.name);
    const double wait = found != waits.end() ? found->second : stages / c.shape.chunks;
    EXPECT_NEAR(s.idle_share(), wait / (c.shape.micro_batches + wait), 1e-9) << name_of(c);
  }
}

/// Of a step on stages that take f, b and w for a micro-batch; all parts of a stage together.
double seconds_of(const Case& c, double f, double b, double w) {
  const auto n = static_cast<std::size_t>(c.shape.stages * c.shape.chunks);
  const auto part = [&](double t) { return std::vector<double>(n, t / c.shape.chunks); };
  const analysis::ComputeTimes times{.forward = part(f),
                                     .backward = part(b + w),
                                     .backward_input = part(b),
                                     .backward_weight = part(w)};
  return analysis::simulate(plan_of(c), {c.shape.stages}, {},
                            {.compute = analysis::compute_times(plan_of(c), times),
                             .collective = [](auto&, auto&) { return 0.0; }})
      .take_or_throw()
      .seconds;
}

// A step ends when all stages have ended it. The last one begins p-1 forwards after the first.
TEST(Pipeline, ZeroBubbleSchedulesTakeTheTimeOfTheirFormulas) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {2 * p - 1, 2 * p, 4 * p}) {
      const Case h1{zero_bubble(), {p, m, 1}}, v{zero_bubble_v(), {p, m, 2}};
      for (const auto& [b, w] : {std::pair(1.0, 1.0), {1.2, 0.8}, {2.0, 0.5}, {1.0, 0.0}}) {
        EXPECT_NEAR(seconds_of(h1, 1, b, w), m * (1 + b + w) + (p - 1) * (1 + b - w), 1e-9);
      }
      // later second steps do not fill more than waits
      EXPECT_NEAR(seconds_of(h1, 1, 0.8, 1.2), m * 3 + p - 1, 1e-9);
      EXPECT_NEAR(seconds_of(v, 1, 1, 1), m * 3 + (p - 1) * 0.5, 1e-9);
      EXPECT_LT(seconds_of(v, 1, 1.2, 0.8), seconds_of(h1, 1, 1.2, 0.8));
    }
  }
}

/// What pipeline() says to gpipe() after a change of the order of stage 1.
std::string refused(const std::function<void(std::vector<StageStep>&)>& change) {
  PipelineSchedule wrong = gpipe();
  wrong.order = [change](const PipelineShape& shape, int stage) {
    std::vector<StageStep> order = gpipe().order(shape, stage);
    if (stage == 1) change(order);
    return order;
  };
  const Status status =
      compose(one_device(layers(2)), micro_batches(2), pipeline({.schedule = wrong})).status();
  EXPECT_EQ(status.code(), Code::kBadPlan);
  return status.message();
}

TEST(Pipeline, AScheduleThatCannotBeIsRefused) {
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refused([](auto& order) { std::ranges::reverse(order); }),
         "all stages wait for each other");
  expect(refused([](auto& order) { order[1] = order[0]; }),
         "stage 1 computes the forward of micro-batch 0, chunk 0 twice");
  expect(refused([](auto& order) { order[1].micro_batch = 2; }),
         "the forward of micro-batch 2, chunk 0, which is none");
  expect(refused([](auto& order) { order[1].kind = ActionKind::kRecompute; }),
         "the recompute of micro-batch 1, chunk 0, which is none");
  const std::string one = "stage 1 does not compute one forward and one backward of micro-batch 1";
  expect(refused([](auto& order) { order.pop_back(); }), one);
  expect(refused([](auto& order) { order[3].kind = StageStep::Kind::kBackwardInput; }), one);
  expect(refused([](auto& order) { order[3].kind = StageStep::Kind::kBackwardWeight; }), one);
  expect(refused([](auto& order) {
           order.push_back(order[3]);
           order.back().kind = StageStep::Kind::kBackwardInput;
         }),
         one);
}

// --- verification ------------------------------------------------------------------------------

std::vector<StepPlan> plans_to_break() {
  std::vector<StepPlan> out;
  for (const Case& c : cases({2, 3}, {1, 2, 4, 6})) {
    // stages that are several batches apart share nothing
    const bool tied = !c.schedule.overlap || c.shape.micro_batches >= c.shape.stages - 1;
    out.push_back(plan_of(c, {mirrored(2)}, tied));
    out.push_back(plan_of(c, {recompute()}));
  }
  out.push_back(compose(one_device(layers(4, true)), micro_batches(2), scale_loss(),
                        clip_gradients(), pipeline({}), mirrored(2))
                    .take_or_throw());
  return out;
}

TEST(PipelineMutation, NoActionCanBeLeftOutOrDoneTwice) {
  for (const StepPlan& p : plans_to_break()) {
    for (std::size_t i = 0; i < p.actions.size(); i += kSanitized ? 8 : 1) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      StepPlan without = p, twice = p;
      without.actions.erase(without.actions.begin() + at);
      twice.actions.insert(twice.actions.begin() + at, p.actions[i]);
      const bool recomputes = p.actions[i].kind == ActionKind::kRecompute;  // else it is kept
      EXPECT_TRUE(recomputes || !analysis::verify(without).ok())
          << p.strategy << " without " << describe(p, i);
      EXPECT_FALSE(analysis::verify(twice).ok()) << p.strategy << " twice " << describe(p, i);
    }
  }
}

TEST(PipelineMutation, NeighboursChangePlacesOnlyWhereNeitherChangesWhatTheOtherUses) {
  test::expect_every_swap_decided(plans_to_break());
}

Status verified(const StepPlan& p) { return analysis::verify(p); }

void expect_refused(StepPlan p, const std::string& why) {
  const Status refused = verified(p);
  EXPECT_EQ(refused.code(), Code::kBadPlan);
  EXPECT_NE(refused.message().find(why), std::string::npos) << refused.message();
}

TEST(PipelineVerify, SaysWhatIsWrong) {
  const StepPlan good = plan_of({gpipe(), {2, 2, 1}}, {}, /*tied=*/true);
  ASSERT_TRUE(verified(good).ok());
  const auto drop = [&](ActionKind kind) {
    StepPlan p = good;
    p.actions.erase(std::ranges::find(p.actions, kind, &Action::kind));
    return p;
  };
  expect_refused(drop(ActionKind::kMoveActivation), "needs the output of segment 0 moved");
  expect_refused(drop(ActionKind::kMoveGradient), "needs the gradient of segment 1 moved");
  expect_refused(drop(ActionKind::kAllReduceTied),
                 "the gradients of parameter 0 (layer0.weight) are "
                 "partial over pp");
  StepPlan p = good;
  p.model.segments[1].stage = 2;
  expect_refused(p, "segment 1 is of stage 2, but the mesh has 2");
  p.model.segments[1].stage = 0;
  expect_refused(p, "stage 1 has no segments");
  p = good;
  p.parameters = {plan::Placement::kReplicate};
  expect_refused(p, "all is staged over 'pp'");
  p = good;
  p.actions.insert(p.actions.end() - 2,
                   {.kind = ActionKind::kAllReduce, .range = {1, 1}, .axes = {"pp"}});
  expect_refused(p, "reduce nothing together");
  p = good;
  p.actions[1].range = {0, 1};
  expect_refused(p, "segments 0 and 1 are of different stages");
  expect_refused(project(good, 1), "is elsewhere: this is the part of one rank");
}

// --- parts of ranks ----------------------------------------------------------------------------

TEST(Project, ARankHasTheActionsOfItsStage) {
  const StepPlan p = plan_of({one_forward_one_backward(), {2, 2, 1}}, {mirrored(2)}, true);
  ASSERT_EQ(p.mesh.size(), 4);  // dp=2 pp=2
  EXPECT_EQ(project(p, 0), project(p, 2));
  EXPECT_EQ(project(p, 1), project(p, 3));
  const auto count = [&](Rank r, ActionKind kind) {
    return std::ranges::count(project(p, r).actions, kind, &Action::kind);
  };
  for (const Rank r : {0, 1}) {
    EXPECT_EQ(count(r, ActionKind::kForward), 2) << r;
    EXPECT_EQ(count(r, ActionKind::kMoveActivation), 2) << r;
    EXPECT_EQ(count(r, ActionKind::kMoveGradient), 2) << r;
    EXPECT_EQ(count(r, ActionKind::kLoss), r == 1 ? 2 : 0);
    EXPECT_EQ(count(r, ActionKind::kAllReduceTied), 1) << r;
    EXPECT_EQ(count(r, ActionKind::kUpdate), 1) << r;
  }
  // the last stage reads layer0.weight, so it takes part in its reduction, too
  EXPECT_EQ(count(0, ActionKind::kAllReduce), 1);
  EXPECT_EQ(count(1, ActionKind::kAllReduce), 2);
  const std::vector<plan::ParameterShape> first = project(p, 1).model.segments[0].parameters;
  EXPECT_FALSE(first[0].elsewhere);
  EXPECT_TRUE(first[1].elsewhere);
}

TEST(Project, WithoutAPipelineItIsThePlan) {
  const StepPlan p = compose(one_device(layers(3)), mirrored(2)).take_or_throw();
  EXPECT_EQ(project(p, 1), p);
}

TEST(Project, StagesOfOnePipelineComputeTheSameSamples) {
  const StepPlan p = plan_of({gpipe(), {2, 2, 1}}, {mirrored(3)});
  std::vector<int> index;
  for (Rank r = 0; r < 6; ++r) {
    EXPECT_EQ(data_part(p.mesh, r).parts, 3);
    index.push_back(data_part(p.mesh, r).index);
  }
  EXPECT_EQ(index, (std::vector<int>{0, 0, 1, 1, 2, 2}));
}

TEST(Project, TheTextFormHasStagesAndWhatIsElsewhere) {
  const StepPlan p = plan_of({interleaved(), {2, 2, 2}}, {}, true);
  EXPECT_EQ(*plan::parse_step_plan(to_text(p)), p);
  EXPECT_EQ(*plan::parse_step_plan(to_text(project(p, 1))), project(p, 1));
  EXPECT_NE(hash(p), hash(project(p, 1)));
  StepPlan other = p;
  other.model.segments[0].stage = 1;
  EXPECT_NE(hash(p), hash(other));
}

// --- cost --------------------------------------------------------------------------------------

TEST(PipelineCost, OnlyBoundariesAndTiedParametersTravel) {
  const StepPlan p = plan_of({one_forward_one_backward(), {3, 4, 1}}, {}, /*tied=*/true);
  analysis::StepSizes sizes;
  sizes.outputs = {1000, 2000, 3000};
  std::vector<int> asked;
  const auto traffic =
      [&](const std::vector<int>& hosts,
          const analysis::Collective& c) -> Result<std::vector<analysis::Traffic>> {
    asked.insert(asked.end(), hosts.begin(), hosts.end());
    EXPECT_EQ(c.elements, 100);  // layer0.weight, between the first and the last stage
    return std::vector<analysis::Traffic>(2);
  };
  const auto cost = analysis::cost(p, {1, 1, 1}, sizes, traffic).take_or_throw();
  EXPECT_EQ(asked, (std::vector<int>{1, 1}));
  EXPECT_EQ(cost.ranks[0].between_hosts, 4 * 1000);
  EXPECT_EQ(cost.ranks[1].between_hosts, 4 * (1000 + 2000));
  EXPECT_EQ(cost.ranks[2].between_hosts, 4 * 2000);
  const auto here = analysis::cost(p, {3}, sizes, [&](auto&, auto&) {
                      return std::vector<analysis::Traffic>(2);
                    }).take_or_throw();
  EXPECT_EQ(here.total().between_hosts, 0);
  EXPECT_EQ(here.total().in_host, cost.total().between_hosts);
}

TEST(PipelineCost, TheEagerScheduleComputesWhileTensorsAreOnTheirWay) {
  for (const int p : {2, 4}) {
    for (const int m : {4, 16}) {
      const auto n = static_cast<std::size_t>(p);
      const auto seconds = [&](const PipelineSchedule& schedule) {
        const StepPlan plan = plan_of({schedule, {p, m, 1}});
        const analysis::ComputeTimes times{.forward = std::vector<double>(n, 1),
                                           .backward = std::vector<double>(n, 2)};
        analysis::StepSizes sizes;
        sizes.outputs.assign(n, 1);
        return analysis::simulate(
                   plan, std::vector<int>(n, 1), sizes,
                   {.compute = analysis::compute_times(plan, times),
                    .collective = [](auto&, auto&) { return 0.0; },
                    .stages_between_hosts = {.latency_s = 0, .seconds_per_byte = 0.5}})
            .take_or_throw()
            .seconds;
      };
      EXPECT_DOUBLE_EQ(seconds(eager_1f1b()), (m + p - 1) * 3 + 2 * (p - 1) * 0.5);
      EXPECT_GT(seconds(one_forward_one_backward()), seconds(eager_1f1b()));
    }
  }
}

TEST(PipelineCost, ASlowLinkHoldsUpWhoNeedsItsTensors) {
  const StepPlan p = plan_of({gpipe(), {2, 4, 1}});
  const analysis::ComputeTimes times{.forward = {1, 1}, .backward = {2, 2}};
  analysis::StepSizes sizes;
  sizes.outputs = {1, 1};
  const auto seconds = [&](double link) {
    return analysis::simulate(p, {1, 1}, sizes,
                              {.compute = analysis::compute_times(p, times),
                               .collective = [](auto&, auto&) { return 0.0; },
                               .stages_between_hosts = {.latency_s = 0, .seconds_per_byte = link}})
        .take_or_throw()
        .seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(0), 15);        // (4 + 1) * 3
  EXPECT_DOUBLE_EQ(seconds(0.5), 15 + 1);  // first activation, last gradient: the others overlap
  // link: 4 activations of 3 s, then the last stage has one more forward and backwards whose
  // gradients leave every 3 s; the first stage computes the last backward
  EXPECT_DOUBLE_EQ(seconds(3), 1 + 4 * 3 + 1 + 2 + 4 * 3 + 2);
}

// --- strategies --------------------------------------------------------------------------------

TEST(PipelineStrategy, ReplicasOfPipelines) {
  const auto plan_for_ranks = [](int ranks, Strategy s, int micro_batches = 4) {
    return plan_for(s, layers(4), {.ranks_per_host = {ranks}}, {.micro_batches = micro_batches});
  };
  Strategy s{.pipeline = 2};
  EXPECT_EQ(plan_for_ranks(2, s)->strategy, "one_device+micro_batches4+pipeline2_1f1b");
  const StepPlan both = *plan_for_ranks(4, s);
  EXPECT_EQ(to_text(both.mesh), "mesh v1 dp=2 pp=2\n");
  const auto why = [&](int ranks, const Strategy& how, int m = 4) {
    return plan_for_ranks(ranks, how, m).status().message();
  };
  EXPECT_NE(
      why(3, s).find(
          "replicas of 2 ranks (pipeline 2, tensor 1, context 1), and 3 ranks are no multiple"),
      std::string::npos);
  EXPECT_NE(why(2, s, 1).find("use train.micro_batches="), std::string::npos);
  s.pipeline = 8;
  EXPECT_NE(why(8, s, 8).find("has 4 segments, too few for 8 parts"), std::string::npos);
  s = {.pipeline = 2, .schedule = "zigzag"};
  EXPECT_NE(why(2, s).find("there are gpipe, 1f1b, eager_1f1b, interleaved"), std::string::npos);
  s = {.pipeline = 2, .schedule = "interleaved", .chunks = 30000};
  EXPECT_NE(why(2, s, 64).find("use fewer micro-batches, stages or chunks"), std::string::npos);
  s = {.pipeline = 2, .schedule = "interleaved", .chunks = 2};
  EXPECT_NE(why(2, s, 5).find("use train.micro_batches=4 or 6"), std::string::npos);
}

}  // namespace
}  // namespace stormo::parallel
