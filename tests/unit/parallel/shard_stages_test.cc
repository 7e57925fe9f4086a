// Shards of the stages of a pipeline, as plans: what is gathered and reduced when, what it costs
// and keeps. That ranks do what these plans say is tested in
// tests/unit/train/model_parallel_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/project.h>

#include "tests/sanitized.h"

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::StepPlan;

/// Layers of 1024 weights and 64 others, without padding on 4 ranks. The last one reads the weight
/// of the first.
plan::ModelShape layers(int n) {
  plan::ModelShape out;
  for (int i = 0; i < n; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".weight", 1024}, {name + ".bias", 64}},
                            .flops_per_sample = 200,
                            .borrowed = {}});
  }
  out.segments.back().borrowed = {0};
  return out;
}

struct Way {
  std::string schedule = "1f1b";
  int stages = 2;
  int chunks = 1;
  int micro_batches = 4;
  Sharding how = {.stage = 1, .ranks = 2};
};

StepPlan plan_of(const Way& way, const Pass& copies, const std::vector<Pass>& before = {},
                 const std::vector<Pass>& after = {}) {
  std::vector<Pass> passes = {micro_batches(way.micro_batches)};
  passes.insert(passes.end(), before.begin(), before.end());
  passes.push_back(pipeline({.stages = way.stages,
                             .chunks = way.chunks,
                             .schedule = pipeline_schedule(way.schedule).take_or_throw()}));
  passes.push_back(copies);
  passes.insert(passes.end(), after.begin(), after.end());
  return compose(one_device(layers(2 * way.stages * way.chunks)), passes).take_or_throw();
}
StepPlan plan_of(const Way& way) { return plan_of(way, sharded(way.how)); }

std::vector<Way> ways() {
  std::vector<Way> out;
  for (const std::string& name : pipeline_schedule_names()) {
    const PipelineSchedule s = pipeline_schedule(name).take_or_throw();
    if (s.overlap) continue;
    for (const int stages : {2, 3}) {
      for (const int zero : {1, 2, 3}) {
        for (const int prefetch : {0, 2}) {
          const Sharding how{.stage = zero, .ranks = 2, .prefetch = prefetch};
          out.push_back({name, stages, s.least_chunks, 6, how});
        }
      }
    }
  }
  return out;
}

std::string name_of(const Way& way) {
  return way.schedule + " p=" + std::to_string(way.stages) +
         " stage=" + std::to_string(way.how.stage) +
         " prefetch=" + std::to_string(way.how.prefetch);
}

std::vector<Action> of_kind(const StepPlan& p, ActionKind kind) {
  std::vector<Action> out;
  std::ranges::copy_if(p.actions, std::back_inserter(out),
                       [kind](const Action& a) { return a.kind == kind; });
  return out;
}

std::ptrdiff_t first_of(const StepPlan& p, ActionKind kind) {
  return std::ranges::find(p.actions, kind, &Action::kind) - p.actions.begin();
}

TEST(ShardStages, EachStageGathersAndReducesWhatItHas) {
  for (const Way& way : ways()) {
    const StepPlan p = plan_of(way, sharded(way.how), {clip_gradients()});
    const auto& segments = p.model.segments;
    const bool tied = segments.front().stage != segments.back().stage;
    for (Rank r = 0; r < way.stages; ++r) {
      const StepPlan mine = project(p, r);
      // units: layers of this stage, and the weight that both ends of the model share
      const int shared = tied && (segments.front().stage == r || segments.back().stage == r);
      const int read = 2 * way.chunks + shared;
      const auto reductions = of_kind(mine, ActionKind::kReduceScatter);
      EXPECT_EQ(std::ssize(reductions), read) << name_of(way) << " rank " << r;
      EXPECT_EQ(of_kind(mine, ActionKind::kReleaseGradients).size(), reductions.size());
      const auto gathers = of_kind(mine, ActionKind::kAllGather);
      if (way.how.stage < 3) {
        EXPECT_EQ(gathers.size(), reductions.size()) << name_of(way);
        EXPECT_TRUE(of_kind(mine, ActionKind::kReshard).empty());
      } else {
        // before each forward and backward, and what they leave goes; the shared weight more often
        EXPECT_GE(std::ssize(gathers), 2 * 6 * (read - shared)) << name_of(way);
        EXPECT_EQ(of_kind(mine, ActionKind::kReshard).size(), gathers.size());
      }
      EXPECT_EQ(of_kind(mine, ActionKind::kSumWeights).size(), 1U);
      EXPECT_EQ(of_kind(mine, ActionKind::kFindUnused).size(), 1U);
    }
    // ranks of a stage learn what is unused before stages add up what they share
    EXPECT_EQ(of_kind(p, ActionKind::kAllReduceTied).size(), tied ? 1U : 0U);
    EXPECT_TRUE(!tied ||
                first_of(p, ActionKind::kFindUnused) < first_of(p, ActionKind::kAllReduceTied));
    EXPECT_LT(first_of(p, ActionKind::kFindUnused), first_of(p, ActionKind::kNorm));
    EXPECT_EQ(of_kind(p, ActionKind::kNorm)[0].axes, (std::vector<std::string>{"pp", "shard"}));
  }
}

// Shards of a stage, or averages of replicas.
TEST(ShardStages, NoStageWaitsForReductionsOfAnother) {
  for (const Way& way : ways()) {
    if (way.how.prefetch > 0) continue;  // reductions do not block
    for (const StepPlan& p : {plan_of(way), plan_of(way, mirrored(2))}) {
      for (Rank r = 0; r < way.stages; ++r) {
        bool blocks = false;  // since the backward
        for (const Action& a : project(p, r).actions) {
          if (row_of(a.kind).passes_gradient()) blocks = false;
          blocks =
              blocks || a.kind == ActionKind::kReduceScatter || a.kind == ActionKind::kAllReduce;
          const bool sends = a.kind == ActionKind::kMoveGradient &&
                             p.model.segments[static_cast<std::size_t>(a.range.last)].stage == r;
          EXPECT_FALSE(sends && blocks) << name_of(way) << " rank " << r << ": " << to_text(a);
        }
      }
    }
  }
}

TEST(ShardStagesMutation, NoActionCanBeLeftOutOrDoneTwice) {
  for (Way way : ways()) {
    if (way.stages > 2) continue;
    way.micro_batches = 4;
    const bool recomputes = way.how.prefetch > 0;
    const StepPlan p = plan_of(way, sharded(way.how), {},
                               recomputes ? std::vector{recompute()} : std::vector<Pass>());
    for (std::size_t i = 0; i < p.actions.size(); i += kSanitized ? 8 : 1) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      StepPlan without = p, twice = p;
      without.actions.erase(without.actions.begin() + at);
      twice.actions.insert(twice.actions.begin() + at, p.actions[i]);
      const bool is_kept = p.actions[i].kind == ActionKind::kRecompute;  // without it
      EXPECT_TRUE(is_kept || !analysis::verify(without).ok())
          << name_of(way) << " without " << describe(p, i);
      EXPECT_FALSE(analysis::verify(twice).ok()) << name_of(way) << " twice " << describe(p, i);
    }
  }
}

TEST(ShardStagesMutation, StagesAddUpOnlyWhatIsReduced) {
  StepPlan p = plan_of({});
  const auto unused = p.actions.begin() + first_of(p, ActionKind::kFindUnused);
  std::rotate(unused, unused + 1, unused + 2);  // behind all_reduce_tied
  const Status status = analysis::verify(p);
  EXPECT_NE(status.message().find("comes before find_unused"), std::string::npos)
      << status.message();
}

TEST(ShardStages, AShardOfTheStateIsKept) {
  for (const int stage : {1, 2, 3}) {
    const StepPlan p = plan_of({.how = {.stage = stage, .ranks = 4}});
    const analysis::StepMemory m = analysis::memory(p, {.optimizer_numbers = 2});
    // the last stage has the weight of the first one, too
    EXPECT_EQ(m.stage, 1);
    const std::int64_t elements = 2 * (1024 + 64) + 1024;
    EXPECT_EQ(m.between_steps.optimizer_state, 2 * elements / 4 * 4);
    EXPECT_EQ(m.between_steps.parameters, stage < 3 ? elements * 4 : elements / 4 * 4);
  }
}

// So a search tries one of them.
TEST(ShardStages, StagesOneAndTwoNeedTheSameMemory) {
  for (Way way : ways()) {
    if (way.how.stage != 1 || way.how.prefetch > 0) continue;
    const auto peak = [&](int stage) {
      way.how.stage = stage;
      const StepPlan p = plan_of(way);
      const std::vector<std::int64_t> activations(p.model.segments.size(), 1000);
      return analysis::memory(p, {.optimizer_numbers = 2, .activations = activations}).peak.total();
    };
    EXPECT_EQ(peak(1), peak(2)) << name_of(way);
  }
}

TEST(ShardStages, WhatStagesShareCostsOneShard) {
  const StepPlan p = plan_of({.how = {.stage = 1, .ranks = 4}});
  std::int64_t reduced = 0, gathered = 0, summed = 0;
  const auto traffic = [&](const std::vector<int>&, const analysis::Collective& c) {
    if (c.goal == plan::GoalKind::kReduceScatter) reduced += c.elements;
    if (c.goal == plan::GoalKind::kAllGather) gathered += c.elements;
    if (c.axes == std::vector<std::string>{"pp"}) summed += c.elements;
    int ranks = 1;
    for (const std::string& axis : c.axes) {
      ranks *= p.mesh.axes[static_cast<std::size_t>(p.mesh.find(axis))].size;
    }
    return Result<std::vector<analysis::Traffic>>(
        std::vector<analysis::Traffic>(static_cast<std::size_t>(ranks)));
  };
  ASSERT_TRUE(analysis::cost(p, {8}, {}, traffic).ok());
  const std::int64_t elements = 4 * (1024 + 64) + 1024;  // of both stages
  EXPECT_EQ(reduced, elements);
  EXPECT_EQ(gathered, elements);
  EXPECT_EQ(summed, 1024 / 4);
}

TEST(ShardStages, AStrategyOfStages) {
  const auto plan_on = [](const std::vector<int>& hosts, Strategy s) {
    s.kind = Strategy::Kind::kFsdp;
    s.pipeline = 2;
    return plan_for(s, layers(4), {.ranks_per_host = hosts}, {.micro_batches = 4});
  };
  const auto mesh = [&](const std::vector<int>& hosts, const Strategy& s) {
    return to_text(plan_on(hosts, s).take_or_throw().mesh);
  };
  EXPECT_EQ(mesh({4}, {.stage = 1}), "mesh v1 shard=2 pp=2\n");
  EXPECT_EQ(mesh({4, 4}, {.stage = 3}), "mesh v1 shard=4 pp=2\n");
  EXPECT_EQ(mesh({4, 4}, {.stage = 1, .hybrid = true}), "mesh v1 dp=2 shard=2 pp=2\n");
  EXPECT_EQ(plan_on({4}, {.stage = 1})->strategy,
            "one_device+micro_batches4+pipeline2_1f1b+sharded1");
  const auto why = [&](const std::vector<int>& hosts, const Strategy& s) {
    return plan_on(hosts, s).status().message();
  };
  EXPECT_NE(why({2}, {}).find("nothing to shard: all 2 ranks compute one replica (pipeline 2"),
            std::string::npos);
  for (const char* schedule : {"pipedream", "pipedream_2bw"}) {
    EXPECT_NE(why({4}, {.schedule = schedule}).find("use a schedule with a flush"),
              std::string::npos);
  }
  EXPECT_NE(why({3, 3}, {.hybrid = true}).find("leave out hybrid"), std::string::npos);
}

}  // namespace
}  // namespace stormo::parallel
