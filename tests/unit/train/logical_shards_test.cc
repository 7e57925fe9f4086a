// Steps with logical shards on ranks that are threads; logical_shards_jobs_test.cc has whole runs.
#include <algorithm>
#include <bit>
#include <cstdint>

#include <gmock/gmock.h>

#include <stormo/parallel/computation/by_segment.h>
#include <stormo/parallel/computation/logical_shards.h>
#include <stormo/parallel/pass.h>
#include <stormo/plan/computing_ranks.h>
#include <stormo/train/step/shard_sums.h>

#include "tests/unit/train/cut_model.h"
#include "tests/unit/train/predicted_cost.h"
#include "trainer_run.h"

namespace stormo {
namespace {

using namespace stormo::test;
using ::testing::HasSubstr;

constexpr int kSteps = 20;

/// Batches of several sizes; in float32, where each other order of additions shows.
std::vector<Batch> batches_of(const Problem& problem) {
  std::vector<Batch> out = problem.batches(kSteps, 24);
  const std::vector<std::int64_t> sizes = {24, 19, 5, 1, 17};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = out[i].rows(0, sizes[i % sizes.size()]);
  return out;
}

Problem in_float32(Problem problem) {
  problem.type = torch::kFloat32;
  return problem;
}

PlanRun run_on(const std::vector<int>& hosts, int shards, const Problem& problem,
               parallel::StepOptions step = {}) {
  step.logical_shards = shards;
  return run_of({.name = "shards", .hosts = hosts, .strategy = {}, .step = step}, problem,
                batches_of(problem));
}

/// Of all ranks, by step: over the tree of ranks.
std::vector<double> losses_of(const std::vector<PlanResult>& runs) {
  std::vector<double> out = runs.front().losses;
  if (runs.size() == 1) return out;
  const auto middle = runs.begin() + plan::left_of(static_cast<int>(runs.size()));
  out = losses_of({runs.begin(), middle});
  const std::vector<double> right = losses_of({middle, runs.end()});
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += right[i];
  return out;
}

void expect_same_bits(const Problem& problem, int shards, const std::vector<std::vector<int>>& ways,
                      const parallel::StepOptions& step = {}) {
  const auto one = train_by_plan(run_on({1}, shards, problem, step));
  for (const std::vector<int>& hosts : ways) {
    const PlanRun run = run_on(hosts, shards, problem, step);
    const auto several = train_by_plan(run);
    const std::string what = problem.name + ", " + std::to_string(shards) + " shards on " +
                             std::to_string(run.ranks()) + " ranks";
    for (const PlanResult& rank : several) expect_near(rank.values, one[0].values, 0, what);
    EXPECT_EQ(losses_of(several), one[0].losses) << what;
  }
}

TEST(LogicalShards, AnyNumberOfRanksMakesTheSameSteps) {
  for (const int shards : {4, 6, 8}) {
    expect_same_bits(in_float32(mlp_problem()), shards, {{2}, {3}, {4}, {2, 2}, {1, 2}});
    expect_same_bits(in_float32(gpt_problem()), shards, {{3}, {4}, {2, 1}}, {.clip = true});
  }
}

/// Trains with these shards on each rank; what rank 0 holds at the end.
Values train_shards(const PlanRun& run, const std::vector<plan::ShardRange>& all) {
  const int most = std::max(run.plan.micro_batches, plan::most_of(all));
  const plan::StepPlan plan =
      parallel::compose(run.plan, {parallel::shards_on_a_rank(most)}).take_or_throw();
  Values first;
  on_plan_ranks(run, [&](PlanRank& rank) {
    const plan::ShardRange own = all[static_cast<std::size_t>(rank.rank())];
    rank.load = [&rank, own] {
      const Batch& batch = rank.run.batches[rank.next++];
      std::int64_t before = 0, mine = 0;
      for (int s = 0; s < own.end; ++s) {
        (s < own.first ? before : mine) +=
            plan::samples_of_shard(batch.x.size(0), rank.run.plan.logical_shards, s);
      }
      if (own.size() == 0) return data::Batch{};
      const Batch rows = batch.rows(before, mine);
      return data::Batch{rows.x, rows.target};
    };
    throw_if_error(rank.runner().set_plan(plan, own));
    rank.steps(kSteps);
    if (rank.rank() == 0) first = rank.values();
  });
  return first;
}

TEST(LogicalShards, RanksThatComputeNothingChangeNoBit) {
  const Problem problem = in_float32(mlp_problem());
  const auto one = train_by_plan(run_on({1}, 6, problem));
  const PlanRun run = run_on({3}, 6, problem);
  const std::vector<std::vector<bool>> ways = {
      {true, true, false}, {true, false, true}, {false, true, true}, {false, false, true}};
  for (const std::vector<bool>& computes : ways) {
    const Values values = train_shards(run, plan::shards_of_computing(6, computes));
    expect_near(values, one[0].values, 0, testing::PrintToString(computes));
  }
}

TEST(LogicalShards, MoreOfThemThanMicroBatchesAreRefused) {
  on_plan_ranks(run_on({1}, 4, mlp_problem()), [](PlanRank& rank) {
    const Status refused = rank.runner().set_plan(rank.run.plan, plan::ShardRange{0, 5});
    EXPECT_THAT(refused.message(), HasSubstr("has 5 logical shards"));
  });
}

TEST(LogicalShards, InSixteenBitsToo) {
  Problem problem = mlp_problem();
  problem.type = torch::kBFloat16;
  expect_same_bits(problem, 6, {{3}});
}

TEST(LogicalShards, WithRecomputationAndSegmentBySegmentToo) {
  const Problem problem = in_float32(mlp_problem());
  expect_same_bits(problem, 6, {{2}, {3}}, {.recompute = true});
  const auto one = train_by_plan(run_on({1}, 6, problem));
  for (const std::vector<int>& hosts : {std::vector<int>{1}, {3}}) {
    PlanRun run = run_on(hosts, 6, problem);
    run.plan = parallel::compose(run.plan, {parallel::by_segment()}).take_or_throw();
    expect_near(train_by_plan(run)[0].values, one[0].values, 0, "by segment");
  }
}

// Against the mean over the whole batch, computed at once.
TEST(LogicalShards, TheStepsAreThoseOfOneProcess) {
  const Problem problem = mlp_problem();
  PlanRun whole =
      run_of({.name = "one", .hosts = {1}, .strategy = {}}, problem, batches_of(problem));
  PlanRun shards = run_on({2, 1}, 8, problem);
  for (PlanRun* run : {&whole, &shards}) {
    run->options.optimizer = {.kind = train::OptimizerOptions::Kind::kSgd, .lr = 0.01};
  }
  expect_near(train_by_plan(shards)[2].values, train_by_plan(whole)[0].values, 1e-12, "sgd");
}

TEST(LogicalShards, RanksDoWhatThePlanSaysAndSendWhatItCosts) {
  const PlanRun run = run_on({2, 1}, 8, mlp_problem());
  const auto cost = predicted_cost(run, {});
  const auto ranks = train_by_plan(run);
  EXPECT_GT(cost.total().between_hosts, 0);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    expect_trace(ranks[r].trace, project(run.plan, static_cast<Rank>(r)), kSteps);
    EXPECT_EQ(ranks[r].sent.back(), static_cast<std::uint64_t>(cost.ranks[r].between_hosts)) << r;
  }
}

TEST(LogicalShards, OtherSamplesThanThoseOfTheShardsAreRefused) {
  on_plan_ranks(run_on({1}, 4, mlp_problem()), [](PlanRank& rank) {
    rank.load = [&rank] {
      const Batch& all = rank.run.batches[rank.next++];
      const Batch some = all.rows(0, all.x.size(0) - 1);
      return data::Batch{some.x, some.target};
    };
    EXPECT_THAT(rank.try_step().status().message(),
                HasSubstr("rank 0 has loaded 23 of 24 samples, which are not those of its logical "
                          "shards"));
  });
}

TEST(LogicalShards, ARunSaysHowLargeTheGlobalBatchIs) {
  on_plan_ranks(run_on({1}, 4, mlp_problem()), [](PlanRank& rank) {
    train::LaneTimer lanes(0);
    const auto runner = train::Runner::create(rank.run.plan, 0,
                                              {.load = [] { return data::Batch(); },
                                               .task = rank.task,
                                               .store = rank.store(),
                                               .lanes = lanes});
    EXPECT_THAT(runner.status().message(), HasSubstr("set RunnerParts::global_samples"));
  });
}

// (a + b) + c, where a + (b + c) is another number.
TEST(ShardSums, AddsGradientsAndLossesOverTheTree) {
  torch::Tensor p = torch::zeros(1, torch::requires_grad());
  train::ShardSums sums({p}, 3);
  for (int step = 0; step < 2; ++step) {
    for (const float term : {1e8f, -1e8f, 1.f}) {
      p.mutable_grad() = torch::full(1, term);
      sums.take_gradients();
      sums.add_loss(term * 1e10);
    }
    EXPECT_EQ(p.grad().item<float>(), (1e8f + -1e8f) + 1.f);
    EXPECT_EQ(sums.take_loss(), 1e10);
    p.mutable_grad().reset();
  }
}

TEST(ShardSums, WhatIsNotThereCountsAsZero) {
  torch::Tensor some = torch::zeros(2, torch::requires_grad()), none = torch::zeros_like(some);
  train::ShardSums sums({some, none}, 2);
  sums.take_gradients();
  some.mutable_grad() = torch::tensor({-0.f, 3.f});
  sums.take_gradients();
  EXPECT_FALSE(none.grad().defined());
  ASSERT_TRUE(some.grad().defined());
  EXPECT_EQ(std::bit_cast<std::uint32_t>(some.grad()[0].item<float>()), 0u);  // 0 + -0
  EXPECT_EQ(some.grad()[1].item<float>(), 3.f);
}

TEST(ShardSums, GradientsThatShareMemoryAreNotChanged) {
  torch::Tensor p = torch::zeros(2, torch::requires_grad());
  train::ShardSums sums({p}, 2);
  const torch::Tensor one = torch::ones(1).expand(2);
  p.mutable_grad() = one;
  sums.take_gradients();
  p.mutable_grad() = one;
  sums.take_gradients();
  EXPECT_TRUE(p.grad().equal(torch::full(2, 2.f)));
  EXPECT_TRUE(one.equal(torch::ones(2)));
}

class ShardedTraining : public TrainerRun {
 protected:
  ShardedTraining() : TrainerRun("stormo_shards") {
    options.strategy = {.kind = train::Strategy::Kind::kDdp};
    options.logical_shards = 8;
    dataset = std::make_shared<ToyDataset>(47);
  }
  std::string refused(int ranks = 2) { return try_run(ranks).status().message(); }
};

TEST_F(ShardedTraining, ReportsTheSameLosses) {
  const Outcome one = run(1);
  for (const int ranks : {2, 3, 4}) {
    const Outcome several = run(ranks);
    EXPECT_EQ(several.end.weights_hash, one.end.weights_hash) << ranks;
    EXPECT_EQ(several.end.train_loss, one.end.train_loss) << ranks;
    ASSERT_EQ(several.steps.size(), one.steps.size());
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_EQ(several.steps[i].loss, one.steps[i].loss) << ranks << " ranks, step " << i;
    }
  }
}

TEST_F(ShardedTraining, SaysAllThatDoesNotGoWithThem) {
  options.strategy.kind = train::Strategy::Kind::kFsdp;
  options.micro_batches = 2;
  options.sharding = data::Sharding::kContiguous;
  const std::string all = refused();
  EXPECT_THAT(all, HasSubstr("use strategy.kind=ddp"));
  EXPECT_THAT(all, HasSubstr("leave out train.micro_batches"));
  EXPECT_THAT(all, HasSubstr("leave out data.sharding, or train.logical_shards"));
}

TEST_F(ShardedTraining, NeedsAShardForEachRank) {
  options.logical_shards = 2;
  EXPECT_THAT(refused(3), HasSubstr("there are 3 ranks: give 3 to 65536, or start fewer ranks"));
}

/// Samples of different lengths.
struct Uneven final : ToyDataset {
  Uneven() : ToyDataset(47) {}
  std::span<const std::int32_t> lengths() const override { return all; }
  std::vector<std::int32_t> all = std::vector<std::int32_t>(47, 3);
};

TEST_F(ShardedTraining, SamplesHaveOneLength) {
  dataset = std::make_shared<Uneven>();
  EXPECT_THAT(refused(), HasSubstr("logical shards (train.logical_shards) are for samples of one "
                                   "length; leave it out"));
}

TEST_F(ShardedTraining, ModelsHaveNoBatchNorm) {
  auto group = comm::make_inproc_group(1).take_or_throw();
  const auto module = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(20, 3),
                                                                  torch::nn::BatchNorm1d(3));
  module->to(torch::kFloat64);
  train::Task task;
  task.module = module;
  task.forward = [module](const torch::Tensor& x) { return module->forward(x); };
  task.loss = model::cross_entropy;
  train::Trainer trainer(*group[0], task, dataset, {}, options);
  EXPECT_THAT(trainer.run().status().message(), HasSubstr("the model has BatchNorm"));
}

}  // namespace
}  // namespace stormo
