// What FullyShardedDataParallel does in a loop of the user's own is what its plan() says, told
// where it is done, on every rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/train/sharding/fully_sharded_data_parallel.h>

#include "tests/unit/train/plan_run.h"

namespace stormo::train {
namespace {

using plan::Action;
using plan::ActionKind;
using test::Problem;
using test::text_of;

constexpr int kWorldSize = 2;

/// Of a plan, without what is the loop's own.
std::vector<Action> of_the_wrapper(const plan::StepPlan& plan) {
  std::vector<Action> out;
  std::ranges::copy_if(plan.actions, std::back_inserter(out), [](const Action& a) {
    return a.kind != ActionKind::kLoad && a.kind != ActionKind::kLoss &&
           a.kind != ActionKind::kAgree;
  });
  return out;
}

struct Loop {
  int micro_batches = 1;
  double clip_norm = 0;    // 0: does not clip
  bool idle_rank = false;  // the last rank has no samples
};

/// One step; the loss is that of the mean.
void step(FullyShardedDataParallel& fsdp, FusedOptimizer& optimizer, const Loop& loop,
          const test::Batch& batch, bool idle) {
  const auto backward = [&] {
    if (idle) return fsdp.join_step();
    model::cross_entropy(fsdp.forward(batch.x), batch.target).backward();
  };
  for (int m = 0; m + 1 < loop.micro_batches; ++m) {
    const auto local = fsdp.no_sync();
    backward();
  }
  backward();
  if (loop.clip_norm > 0) fsdp.clip_gradients(loop.clip_norm);
  fsdp.step(optimizer, 0.01);
  fsdp.zero_grad();
}

/// By rank; all of `steps` steps.
std::vector<std::vector<Action>> traces(const Problem& problem, const ShardingOptions& options,
                                        const Loop& loop, int steps, plan::StepPlan& plan) {
  std::vector<std::shared_ptr<model::Chain>> models;
  for (int r = 0; r < kWorldSize; ++r) models.push_back(problem.model(3));
  const auto batches = problem.batches(steps, 4);
  std::vector<std::vector<Action>> out(kWorldSize);
  test::on_ranks(kWorldSize, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    FullyShardedDataParallel fsdp(world, models[r], options);
    const auto optimizer = fsdp.make_optimizer({.lr = 0.01});
    fsdp.on_action([&](const Action& a) { out[r].push_back(a); });
    const bool idle = loop.idle_rank && world.rank() + 1 == kWorldSize;
    for (const test::Batch& batch : batches) step(fsdp, *optimizer, loop, batch, idle);
    if (world.rank() == 0) plan = fsdp.plan();
  });
  return out;
}

void expect_trace(const std::vector<std::vector<Action>>& traces, const plan::StepPlan& plan,
                  int steps, const std::string& which) {
  std::vector<Action> expected;
  for (int i = 0; i < steps; ++i) {
    const auto one = of_the_wrapper(plan);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  for (const auto& trace : traces) EXPECT_EQ(text_of(trace), text_of(expected)) << which;
}

TEST(FullyShardedTrace, IsThePlan) {
  for (const Problem& problem : {test::mlp_problem(), test::cnn_problem(), test::gpt_problem()}) {
    for (const int stage : {1, 2, 3}) {
      for (const int prefetch : {0, 1, 2}) {
        for (const bool reshard : {true, false}) {
          if (!reshard && stage < 3) continue;
          const ShardingOptions options{
              .stage = stage, .reshard_after_forward = reshard, .prefetch = prefetch};
          plan::StepPlan plan;
          const auto done = traces(problem, options, {}, 2, plan);
          const Status verified = analysis::verify(plan);
          EXPECT_TRUE(verified.ok()) << verified.to_string() << to_text(plan);
          expect_trace(done, plan, 2,
                       problem.name + ", stage " + std::to_string(stage) + ", prefetch " +
                           std::to_string(prefetch) + (reshard ? "" : ", whole until backward"));
        }
      }
    }
  }
}

// The plan of the loop is another one: of passes that anybody can compose.
TEST(FullyShardedTrace, FollowsMicroBatchesAndClipping) {
  const Problem problem = test::gpt_problem();
  for (const int stage : {1, 3}) {
    for (const bool idle : {false, true}) {
      plan::StepPlan plan;
      const auto done = traces(problem, {.stage = stage},
                               {.micro_batches = 3, .clip_norm = 0.1, .idle_rank = idle}, 2, plan);
      const auto loop = parallel::compose(
          parallel::one_device(plan.model),
          {parallel::micro_batches(3), parallel::clip_gradients(),
           parallel::sharded({.stage = stage, .ranks = kWorldSize, .prefetch = 1})});
      ASSERT_TRUE(loop.ok()) << loop.status().to_string();
      expect_trace(done, *loop, 2, "stage " + std::to_string(stage) + (idle ? ", idle" : ""));
    }
  }
}

// No gradient reaches the first segment: its backward is over when the others' are.
TEST(FullyShardedTrace, HasFrozenSegments) {
  const Problem problem = test::with_frozen_segment(test::mlp_problem(), 0);
  for (const int stage : {2, 3}) {
    plan::StepPlan plan;
    const auto done = traces(problem, {.stage = stage}, {}, 2, plan);
    expect_trace(done, plan, 2, "stage " + std::to_string(stage));
  }
}

// Evaluation between steps gathers and releases too, and the steps around it are the plan's.
TEST(FullyShardedTrace, IsThePlanAgainAfterAnEvaluation) {
  const Problem problem = test::mlp_problem();
  for (const int stage : {2, 3}) {
    std::vector<std::shared_ptr<model::Chain>> models;
    for (int r = 0; r < kWorldSize; ++r) models.push_back(problem.model(3));
    const test::Batch batch = problem.batches(1, 4).front();
    test::on_ranks(kWorldSize, [&](comm::Communicator& world) {
      FullyShardedDataParallel fsdp(world, models[static_cast<std::size_t>(world.rank())],
                                    {.stage = stage});
      const auto optimizer = fsdp.make_optimizer({.lr = 0.01});
      step(fsdp, *optimizer, {}, batch, false);
      {
        const auto whole = fsdp.gathered();
        const torch::NoGradGuard no_grad;
        models[static_cast<std::size_t>(world.rank())]->forward(batch.x);
      }
      fsdp.parameters_changed();
      std::vector<Action> trace;
      fsdp.on_action([&](const Action& a) { trace.push_back(a); });
      step(fsdp, *optimizer, {}, batch, false);
      EXPECT_EQ(text_of(trace), text_of(of_the_wrapper(fsdp.plan()))) << "stage " << stage;
    });
  }
}

// Gathered parameters may be read between backward and update; what is trained is the same.
TEST(FullyShardedTrace, TrainsTheSameIfReadBetweenBackwardAndUpdate) {
  const Problem problem = test::mlp_problem();
  const auto batches = problem.batches(3, 4);
  for (const int stage : {1, 2, 3}) {
    std::vector<test::Values> values;
    for (const bool reads : {false, true}) {
      std::vector<std::shared_ptr<model::Chain>> models;
      for (int r = 0; r < kWorldSize; ++r) models.push_back(problem.model(3));
      test::on_ranks(kWorldSize, [&](comm::Communicator& world) {
        const auto& chain = models[static_cast<std::size_t>(world.rank())];
        FullyShardedDataParallel fsdp(world, chain, {.stage = stage});
        const auto optimizer = fsdp.make_optimizer({.lr = 0.1});
        for (const test::Batch& batch : batches) {
          model::cross_entropy(fsdp.forward(batch.x), batch.target).backward();
          if (reads) const auto whole = fsdp.gathered();
          fsdp.step(*optimizer, 0.1);
          fsdp.zero_grad();
        }
        fsdp.keep_gathered();
      });
      values.push_back(test::values_of(*models[0]));
    }
    test::expect_near(values[1], values[0], 0, "stage " + std::to_string(stage));
  }
}

TEST(FullyShardedTrace, IsThePlanOfABlockAndAChain) {
  const Problem problem = test::mlp_problem();
  std::vector<std::shared_ptr<model::Chain>> models;
  std::vector<torch::nn::Linear> blocks;
  for (int r = 0; r < kWorldSize; ++r) {
    models.push_back(problem.model(3));
    blocks.emplace_back(torch::nn::LinearOptions(20, 20));
    blocks.back()->to(torch::kFloat64);
  }
  const test::Batch batch = problem.batches(1, 4).front();
  test::on_ranks(kWorldSize, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    FullyShardedDataParallel fsdp(world);
    fsdp.shard("first", blocks[r]);
    fsdp.shard(models[r]);
    const auto optimizer = fsdp.make_optimizer({.lr = 0.01});
    std::vector<Action> trace;
    fsdp.on_action([&](const Action& a) { trace.push_back(a); });
    model::cross_entropy(fsdp.forward(fsdp.forward(blocks[r], batch.x)), batch.target).backward();
    fsdp.step(*optimizer, 0.01);
    EXPECT_EQ(text_of(trace), text_of(of_the_wrapper(fsdp.plan())));
  });
}

// Parts are averaged with those who hold the same part of another copy.
TEST(FullyShardedTrace, IsThePlanOfAHybrid) {
  const Problem problem = test::mlp_problem();
  std::vector<std::shared_ptr<model::Chain>> models;
  for (int r = 0; r < 4; ++r) models.push_back(problem.model(3));
  const test::Batch batch = problem.batches(1, 4).front();
  test::Group worlds = comm::make_hosts({2, 2});
  std::vector<test::Group> shards, replicas;
  for (int i = 0; i < 2; ++i) {
    shards.push_back(comm::make_hosts({2}));
    replicas.push_back(comm::make_hosts({1, 1}));
  }
  test::on_ranks(worlds, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const ShardingGroups groups{.world = &world,
                                .shards = shards[r / 2][r % 2].get(),
                                .replicas = replicas[r % 2][r / 2].get()};
    FullyShardedDataParallel fsdp(groups, {.hybrid = true});
    fsdp.shard(models[r]);
    const auto optimizer = fsdp.make_optimizer({.lr = 0.01});
    std::vector<Action> trace;
    fsdp.on_action([&](const Action& a) { trace.push_back(a); });
    step(fsdp, *optimizer, {}, batch, false);
    const plan::StepPlan plan = fsdp.plan();
    const Status verified = analysis::verify(plan);
    EXPECT_TRUE(verified.ok()) << verified.to_string();
    EXPECT_TRUE(std::ranges::any_of(
        trace, [](const Action& a) { return a.kind == ActionKind::kAllReduce; }));
    EXPECT_EQ(text_of(trace), text_of(of_the_wrapper(plan)));
  });
}

}  // namespace
}  // namespace stormo::train
