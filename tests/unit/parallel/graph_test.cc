// Graphs of segments over ranks as plans: what is sent, priced, simulated and refused. That ranks
// do what these plans say is tested in tests/unit/train/graph_test.cc.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/transfer/crossings.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::ActionKind;
using plan::StepPlan;
using Messages = std::map<std::pair<Rank, Rank>, std::int64_t>;

/// A graph over three ranks, and a head.
plan::ModelShape model() {
  plan::ModelShape out;
  out.segments.push_back(
      {.name = "graph",
       .parameters =
           {{.name = "graph.a", .elements = 80, .split = {.units = 8, .counts = {8, 0, 0}}},
            {.name = "graph.b", .elements = 90, .split = {.units = 9, .counts = {0, 9, 0}}},
            {.name = "graph.c", .elements = 20, .split = {.units = 2, .counts = {0, 0, 2}}}},
       .flops_per_sample = 100,
       .sums = {.forward = {}, .backward = {6}, .loss = {}},
       .state_crossings = {{{0, 1, 7}, {0, 2, 7}}, {{1, 0, 3}}, {{0, 1, 10}, {0, 2, 10}}}});
  out.segments.push_back({.name = "head", .parameters = {{.name = "head.w", .elements = 30}}});
  return out;
}

StepPlan plan_of(const std::vector<Pass>& passes) {
  return compose(one_device(model()), passes).take_or_throw();
}

analysis::StepSizes sizes() {
  analysis::StepSizes out;
  out.samples = 5;
  return out;
}

Messages sent(const StepPlan& p, ActionKind kind) {
  Messages out;
  for (const plan::Action& a : p.actions) {
    if (a.kind != kind) continue;
    for (const analysis::Crossing& c : analysis::crossings_of(p, a, sizes())) {
      EXPECT_EQ(c.axis, "tp");
      for (const analysis::Crossing::Message& m : c.messages) out[{m.from, m.to}] += m.bytes;
    }
  }
  return out;
}

TEST(GraphPlan, SaysWhatCrosses) {
  const StepPlan p = plan_of({tensor_parallel(3), mirrored(2)});
  const std::string text = to_text(p);
  for (const char* part :
       {" states 0 to 1 of 7, 0 to 2 of 7 states 1 to 0 of 3 states 0 to 1 of 10",
        "graph.b elements=90 type=float32 split 9 counts 0,9,0\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_EQ(*plan::parse_step_plan(text), p);
  StepPlan other = p;
  other.model.segments[0].state_crossings[1][0].elements = 4;
  EXPECT_NE(hash(other), hash(p));
  const plan::StepPlan of_one = project(p, 4);
  EXPECT_EQ(of_one.model.segments[0].parameters[1].elements, 90);
  EXPECT_EQ(of_one.model.segments[0].parameters[0].elements, 0);
  EXPECT_EQ(largest_model_of(p.model, p.mesh, 0).segments[0].parameters[1].elements, 90);
}

TEST(GraphPlan, EachStateGoesOnceAndItsGradientComesBack) {
  const std::int64_t n = 5 * 4;  // samples, bytes
  const StepPlan p = plan_of({tensor_parallel(3), recompute()});
  const Messages forward = {{{0, 1}, 17 * n}, {{0, 2}, 17 * n}, {{1, 0}, 3 * n}};
  EXPECT_EQ(sent(p, ActionKind::kForward), forward);
  EXPECT_EQ(sent(p, ActionKind::kRecompute), forward);
  // but not that of the output, which every rank has
  EXPECT_EQ(sent(p, ActionKind::kBackward),
            (Messages{{{1, 0}, 7 * n}, {{2, 0}, 7 * n}, {{0, 1}, 3 * n}}));
}

TEST(GraphPlan, ReplicasSendTheSameAndStagesOnlyTheirs) {
  const std::int64_t n = 5 * 4;
  const Messages of_replicas =
      sent(plan_of({tensor_parallel(3), mirrored(2)}), ActionKind::kBackward);
  EXPECT_EQ(of_replicas.size(), 6U);
  EXPECT_EQ(of_replicas.at({5, 3}), 7 * n);
  const StepPlan p = plan_of({micro_batches(2), pipeline({.stages = 2}), tensor_parallel(3)});
  const Messages of_stage = sent(p, ActionKind::kForward);
  for (const auto& [ends, bytes] : of_stage) EXPECT_LT(ends.first, 3) << "of stage 1";
  EXPECT_EQ(of_stage.size(), 3U);
}

TEST(GraphPlan, WhatIsFrozenSendsNoGradients) {
  plan::ModelShape frozen = model();
  for (plan::ParameterShape& p : frozen.segments[0].parameters) p.trainable = false;
  const StepPlan p = compose(one_device(frozen), tensor_parallel(3)).take_or_throw();
  EXPECT_TRUE(sent(p, ActionKind::kBackward).empty());
  EXPECT_FALSE(sent(p, ActionKind::kForward).empty());
}

TEST(GraphPlan, SimulationCountsExchanges) {
  analysis::StepTimes times{.compute = [](Rank, const plan::Action&) { return 1.0; },
                            .collective = [](const auto&, const auto&) { return 0.0; }};
  const StepPlan p = plan_of({tensor_parallel(3)});
  const auto seconds = [&] {
    return analysis::simulate(p, {3}, sizes(), times).take_or_throw().seconds;
  };
  const double without = seconds();
  times.stages_in_host.latency_s = 0.25;  // two messages of a rank, one, two; back one and one
  EXPECT_NEAR(seconds() - without, 0.25 * (2 + 1 + 2 + 1 + 1), 1e-9);
}

TEST(GraphPlan, RefusesOtherNumbersOfRanksAndOtherForms) {
  const Status other = compose(one_device(model()), {tensor_parallel(2)}).status();
  EXPECT_EQ(other.code(), Code::kInvalidArgument);
  EXPECT_NE(other.message().find("segment 'graph' is divided over 3 ranks, not over 2"),
            std::string::npos)
      << other.message();
  for (const auto& [change, message] : std::vector<std::pair<void (*)(StepPlan&), const char*>>{
           {[](StepPlan& p) { p.model.segments[0].state_crossings[0][0].to = 3; },
            "go from rank 0 to rank 3"},
           {[](StepPlan& p) { p.model.segments[0].state_crossings[1][0].from = 0; },
            "go from rank 0 to rank 0"},
           {[](StepPlan& p) { p.model.segments[0].state_crossings[0][0].to = 2; }, "there twice"},
           {[](StepPlan& p) { p.model.segments[0].state_crossings[0][0].elements = 0; },
            "go from rank 0"},
           {[](StepPlan& p) { p.model.segments[0].state_crossings[1].clear(); },
            "an exchange without states"},
           {[](StepPlan& p) {
              p.model.segments[0].parameters[0].split.counts = {4, 0, 3};
            },
            "counts that do not give its 8 units"},
           {[](StepPlan& p) {
              p.model.segments[0].parameters[0].split.counts = {9, -1, 0};
            },
            "counts that do not give its 8 units"}}) {
    StepPlan p = plan_of({tensor_parallel(3)});
    change(p);
    const Status status = analysis::verify(p);
    EXPECT_NE(status.message().find(message), std::string::npos)
        << message << " in " << status.message();
  }
}

}  // namespace
}  // namespace stormo::parallel
