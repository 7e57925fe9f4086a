// Workers of several ranks, with parts of a batch, or stages: the passes parameter_server,
// worker_ranks.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/replicas/worker_ranks.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/project.h>

#include "plan_text.h"

namespace stormo::parallel {
namespace {

using plan::ActionKind;
using plan::StepPlan;
using test::all_actions;
using testing::ElementsAre;
using testing::HasSubstr;

plan::ModelShape shape() {
  plan::ModelShape out;
  for (const std::string name : {"a", "b"}) {
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".weight", 6}, {name + ".bias", 2}},
                            .flops_per_sample = 0,
                            .borrowed = {}});
  }
  return out;
}

TEST(WorkerRanks, AverageTheirGradientsAndPushOnce) {
  const auto p =
      compose(one_device(shape()), micro_batches(2), clip_gradients(), parameter_server(3, {}, 2));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", 3}, {"worker", 2}}}));
  EXPECT_EQ(p->parameters, std::vector(2, plan::Placement::kRemote));
  EXPECT_EQ(p->frozen, std::vector(2, plan::Placement::kReplicate));
  EXPECT_THAT(
      all_actions(*p),
      ElementsAre("load", "pull 0-3 over dp,worker", "forward 0-1", "loss", "backward 0-1",
                  "forward 0-1 batch 1", "loss batch 1", "backward 0-1 batch 1", "sum_weights",
                  "all_reduce 0-3 over worker", "norm", "clip", "push 0-3 over dp", "agree"));
  const auto after =
      compose(one_device(shape()), parameter_server(3, {}, 2), micro_batches(2), clip_gradients());
  ASSERT_TRUE(after.ok()) << after.status().to_string();
  EXPECT_EQ(after->actions, p->actions);
  EXPECT_EQ(project(*p, 2), *p);
  StepPlan second = *p;  // the first rank of a worker pushes
  std::erase_if(second.actions, [](const auto& a) { return a.kind == ActionKind::kPush; });
  EXPECT_EQ(project(*p, 3), second);
}

TEST(WorkerRanks, MayTrainCopiesBetweenPullsAndPushes) {
  const auto p = compose(one_device(shape()), parameter_server(2, {.fetch = 4, .push = 2}, 2));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_THAT(all_actions(*p),
              ElementsAre("load", "pull 0-3 over dp,worker every 4", "forward 0-1", "loss",
                          "backward 0-1", "sum_weights", "all_reduce 0-3 over worker", "update 0-3",
                          "push 0-3 over dp every 2", "agree"));
}

// Between averages they train one copy, as replicas of ddp do.
TEST(WorkerRanks, AverageTheirGradientsAndThenTheirParameters) {
  const auto p =
      compose(one_device(shape()), micro_batches(2), worker_ranks(2), parameter_averaging(3, 4));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(to_text(p->mesh), "mesh v1 dp=3 worker=2\n");
  using enum plan::Placement;
  EXPECT_EQ(p->parameters, (std::vector{kDiverged, kReplicate}));
  EXPECT_EQ(p->optimizer_state, p->parameters);
  EXPECT_THAT(all_actions(*p),
              ElementsAre("load", "forward 0-1", "loss", "backward 0-1", "forward 0-1 batch 1",
                          "loss batch 1", "backward 0-1 batch 1", "sum_weights",
                          "all_reduce 0-3 over worker", "update 0-3",
                          "average 0-3 over dp,worker every 4", "agree every 4"));
  StepPlan alone = *p;
  std::erase_if(alone.actions, [](const auto& a) { return a.kind == ActionKind::kAllReduce; });
  EXPECT_THAT(analysis::verify(alone).message(), HasSubstr("weights"));
  std::erase_if(alone.actions, [](const auto& a) { return a.kind == ActionKind::kSumWeights; });
  EXPECT_THAT(analysis::verify(alone).message(), HasSubstr("diverged over worker"));
  StepPlan some = *p;  // copies of a worker would be added up in different orders
  std::ranges::find(some.actions, ActionKind::kAverage, &plan::Action::kind)->axes.pop_back();
  EXPECT_THAT(analysis::verify(some).message(),
              HasSubstr("are replicate over worker between steps"));
  EXPECT_EQ(worker_ranks(1)(one_device(shape())).status().message(),
            "worker_ranks: 1 ranks; give at least 2");
  EXPECT_THAT(worker_ranks(2)(*p).status().message(), HasSubstr("the mesh has axes already"));
  // a codec is of what replicas send to each other
  const auto coded = compose(*p, reduce_with({.codec = Codec::kBFloat16}));
  ASSERT_TRUE(coded.ok()) << coded.status().to_string();
  for (const plan::Action& a : coded->actions) EXPECT_EQ(a.codec, Codec::kNone);
}

TEST(WorkerRanks, DivideTheRanksOfSomeStrategies) {
  const auto message = [](const Strategy& strategy, std::vector<int> ranks) {
    const auto p = plan_for(strategy, shape(), {.ranks_per_host = std::move(ranks)});
    return p.ok() ? to_text(p->mesh) : p.status().message();
  };
  using enum Strategy::Kind;
  for (const auto kind : {kParameterServer, kParameterAveraging}) {
    Strategy s{.kind = kind, .worker_ranks = 2};
    EXPECT_EQ(message(s, {6}), "mesh v1 dp=3 worker=2\n");
    EXPECT_THAT(message(s, {3}), HasSubstr("' has workers of 2 ranks (worker_ranks), and 3 ranks "
                                           "are no multiple of that; start others, or change "
                                           "worker_ranks"));
    s.worker_ranks = 0;
    EXPECT_THAT(message(s, {3}), HasSubstr("at least 1 rank, not 0"));
  }
  for (const auto kind : {kDdp, kGossip, kElasticAveraging}) {
    EXPECT_THAT(message({.kind = kind, .worker_ranks = 2}, {2}),
                HasSubstr("has no workers of several ranks; leave out worker_ranks, or use one of "
                          "'parameter_server', 'parameter_averaging'"));
  }
  EXPECT_EQ(parameter_server(2, {}, 0)(one_device(shape())).status().message(),
            "parameter_server: 0 ranks of a worker; give at least 1");
  EXPECT_EQ(message({.kind = kParameterAveraging, .worker_ranks = 2}, {3, 1}),
            "mesh v1 dp=2 worker=2\n");
  EXPECT_THAT(message({.kind = kParameterAveraging, .worker_ranks = 2, .pipeline = 2}, {8}),
              HasSubstr("has a rank for each part of a worker"));
}

// Each stage pulls and pushes what it has of these ranges, and agrees with the others of its
// worker.
TEST(WorkerStages, PullAndPushTheirOwnParameters) {
  const auto p = plan_for({.kind = Strategy::Kind::kParameterServer, .pipeline = 2}, shape(),
                          {.ranks_per_host = {6}}, {.micro_batches = 2, .clip = true});
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  using enum plan::Placement;
  EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", 3}, {"pp", 2}}}));
  EXPECT_EQ(p->parameters, (std::vector{kRemote, kStaged}));
  EXPECT_EQ(p->optimizer_state, (std::vector{kRemote, kStaged}));
  EXPECT_EQ(p->frozen, (std::vector{kReplicate, kStaged}));
  const std::vector<std::string> all = all_actions(*p);
  ASSERT_GT(all.size(), 6u);
  EXPECT_THAT(std::vector(all.begin(), all.begin() + 3),
              ElementsAre("load", "pull 0-3 over dp", "forward 0-0"));
  EXPECT_THAT(std::vector(all.end() - 4, all.end()),
              ElementsAre("norm over pp", "clip", "push 0-3 over dp", "agree"));
  for (const Rank rank : {4, 5}) {
    const auto pushes = [](const auto& a) { return a.kind == ActionKind::kPush; };
    const StepPlan own = project(*p, rank);
    EXPECT_EQ(std::ranges::count_if(own.actions, pushes), 1);
    for (const plan::ParameterShape* parameter : flatten(own.model)) {
      EXPECT_EQ(parameter->elsewhere, parameter->name.front() != (rank == 4 ? 'a' : 'b'));
    }
  }
}

TEST(WorkerStages, RefuseWhatDoesNotGoTogether) {
  const auto message = [](Strategy s, const StepOptions& step = {.micro_batches = 2}) {
    s.kind = Strategy::Kind::kParameterServer;
    return plan_for(s, shape(), {.ranks_per_host = {8}}, step).status().message();
  };
  EXPECT_EQ(message({.exchange_periods = {.fetch = 2},
                     .worker_ranks = 2,
                     .pipeline = 2,
                     .tensor = 2,
                     .context = 2,
                     .schedule = "pipedream"},
                    {.micro_batches = 2, .trust_ratios = true}),
            "strategy 'parameter_server' cuts workers into stages and slices only: leave out "
            "context, or use 'ddp'; has a rank for each part of a worker: leave out worker_ranks, "
            "or pipeline and tensor; has servers with slices, which do not know the norms of whole "
            "parameters: leave out tensor, or take an optimizer other than lars and lamb; pushes "
            "after whole steps, and those of schedule 'pipedream' overlap: leave out schedule, or "
            "use 'ddp'; has parts of workers that pull and push in every step: leave out "
            "fetch_every and push_every, or pipeline and tensor");
  EXPECT_EQ(message({.exchange_periods = {.averages = true}, .pipeline = 2}),
            "strategy 'parameter_server' has servers that average workers of one rank: leave out "
            "pipeline and tensor, or use 'parameter_averaging'");
  EXPECT_EQ(message({.pipeline = 2}), "");
  const auto behind = [](const Pass& pass, int ranks) {
    return compose(one_device(shape()), micro_batches(2), pass, parameter_server(2, {}, ranks))
        .status()
        .message();
  };
  EXPECT_THAT(behind(pipeline({.schedule = pipedream()}), 1), HasSubstr("steps overlap"));
  EXPECT_THAT(behind(pipeline({}), 2), HasSubstr("the parts of a worker are its ranks"));
}

}  // namespace
}  // namespace stormo::parallel
