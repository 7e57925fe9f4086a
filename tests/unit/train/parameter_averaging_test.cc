// Parameter averaging on ranks that are threads: what it must be equal to, how often it averages,
// and what is refused.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/train/loop/averaging_schedule.h>

#include "tests/unit/comm/ranks.h"
#include "toy_cost.h"
#include "trainer_run.h"

namespace stormo::train {
namespace {

using test::distance;
using testing::HasSubstr;

class ParameterAveraging : public test::TrainerRun {
 protected:
  ParameterAveraging() : TrainerRun("stormo_averaging_") {
    options.optimizer = {.lr = 0.05, .momentum = 0, .weight_decay = 1e-4};
    average(1);
  }
  void average(int period) {
    options.strategy = {.kind = Strategy::Kind::kParameterAveraging, .period = period};
  }
  /// By a rank of two hosts. Before and after steps ranks send something else, too.
  std::uint64_t sent_in_24_steps() {
    make_group = [](int ranks) {
      return comm::make_hosts(std::vector<int>(static_cast<std::size_t>(ranks), 1));
    };
    std::vector<std::uint64_t> bytes;
    for (const int steps : {24, 48}) {
      options.steps = steps;
      bytes.push_back(run(2).end.bytes_sent_per_rank[1]);
    }
    return bytes[1] - bytes[0];
  }
  /// With gradients averaged in every step.
  Outcome synchronous(int ranks) {
    const Strategy before = options.strategy;
    options.strategy = {.kind = Strategy::Kind::kMirrored,
                        .parameters = Strategy::Parameters::kReplicated};
    Outcome out = run(ranks);
    options.strategy = before;
    return out;
  }
};

// 13 samples on 3 ranks are 4, 4 and 5; the last batch of an epoch has 5, and 3 on 4 ranks leave
// one without.
TEST_F(ParameterAveraging, OfEveryStepIsSynchronousSgdAlsoWithMomentumAndUnequalBatches) {
  options.global_batch = 13;
  options.steps = 24;
  for (const double momentum : {0.0, 0.9}) {
    options.optimizer.momentum = momentum;
    for (const int ranks : {2, 3, 4}) {
      EXPECT_LE(distance(run(ranks).values, synchronous(ranks).values), 1e-12)
          << "momentum " << momentum << ", " << ranks << " ranks";
    }
  }
}

TEST_F(ParameterAveraging, OfEveryStepIsNotSynchronousForAdam) {
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  EXPECT_GT(distance(run(3).values, synchronous(3).values), 1e-4);
}

TEST_F(ParameterAveraging, OfSeveralStepsIsAnotherTraining) {
  const Outcome synchronized = synchronous(2);
  average(4);
  EXPECT_GT(distance(run(2).values, synchronized.values), 1e-6);
}

TEST_F(ParameterAveraging, BytesFallByThePeriod) {
  const std::uint64_t of_every_step = sent_in_24_steps();
  EXPECT_GT(of_every_step, 0u);
  average(8);
  EXPECT_EQ(sent_in_24_steps(), of_every_step / 8);
}

// The norm of the gradients and what ranks agree on are counted with the tensors, to the byte.
TEST_F(ParameterAveraging, ARunSendsWhatItsPlanSays) {
  options.log_every = 1000;  // a line of the log is no part of a step
  options.clip_norm = 0.5;
  const plan::ModelShape shape = test::toy_shape();
  const std::vector<int> hosts = {1, 1};
  for (const Strategy& strategy :
       {options.strategy, Strategy{.parameters = Strategy::Parameters::kReplicated}}) {
    options.strategy = strategy;
    if (parallel::row_of(strategy.kind).has_key("overlap")) options.gradients.overlap = false;
    const plan::StepPlan plan =
        parallel::plan_for(strategy, shape, {.ranks_per_host = hosts}, {.clip = true})
            .take_or_throw();
    const auto cost = test::toy_cost(plan, hosts, options);
    EXPECT_EQ(sent_in_24_steps(), 24 * static_cast<std::uint64_t>(cost.ranks[1].between_hosts));
  }
}

// Two ranks with the same data would be one: so each rank's copy trains on its own part.
TEST_F(ParameterAveraging, BetweenAveragesEachRankTrainsByItself) {
  options.steps = 8;
  average(8);
  const Outcome out = run(2);
  ASSERT_TRUE(out.end.averaging);
  EXPECT_EQ(out.end.averaging->averages, 1);
  EXPECT_GT(out.end.averaging->max_distance, 1e-3);
  average(1);
  options.steps = 8;
  EXPECT_LT(run(2).end.averaging->max_distance, out.end.averaging->max_distance);
}

TEST_F(ParameterAveraging, AveragesEveryPeriodAndWhereParametersAreNeeded) {
  options.steps = 23;
  average(8);
  EXPECT_EQ(run(2).end.averaging->averages, 3);  // after 8, 16, 23
  options.eval_every = 10;
  const Outcome evaluated = run(2);
  EXPECT_EQ(evaluated.end.averaging->averages, 5);  // 8, 10, 16, 20, 23
  ASSERT_EQ(evaluated.evals.size(), 3u);
  EXPECT_EQ(evaluated.evals[0].step, 10);
  options.averaging.warmup_steps = 5;
  EXPECT_EQ(run(2).end.averaging->averages, 10);
}

TEST_F(ParameterAveraging, LossesAreThoseOfAllRanksSinceTheLastAverage) {
  options.steps = 16;
  average(8);
  options.log_every = 8;
  const Outcome out = run(2);
  ASSERT_EQ(out.steps.size(), 2u);
  EXPECT_EQ(out.steps[1].step, 16);
  EXPECT_LT(out.steps[1].loss, out.steps[0].loss);
  EXPECT_EQ(out.end.samples, 16 * 12);
  EXPECT_EQ(out.end.train_loss_steps, 8) << "of an epoch, which has 8 steps";
}

TEST_F(ParameterAveraging, ResumedRunEndsInTheSameBits) {
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  average(4);
  options.checkpoint = {.directory = folder, .every = 6};
  const Outcome whole = run(3);
  options.steps = 6;
  options.overwrite = true;
  run(3);
  options.overwrite = false;
  options.steps = 20;
  options.resume = true;
  EXPECT_EQ(run(3).end.weights_hash, whole.end.weights_hash);
}

TEST_F(ParameterAveraging, ABoundOnTheDistanceIsKept) {
  options.steps = 200;
  average(64);
  options.optimizer.lr = 0.02;
  const double free = run(3).end.averaging->max_distance;
  options.averaging.max_distance = free / 2;
  const Outcome bounded = run(3);
  EXPECT_LE(bounded.end.averaging->max_distance, free / 2);
  EXPECT_LT(bounded.end.averaging->averages, 100) << "it averages more often than it needs to";
  EXPECT_GT(bounded.end.averaging->period, 1);
}

TEST(AveragingSchedule, PeriodFollowsTheTimeOfSteps) {
  using std::chrono::milliseconds;
  AveragingSchedule schedule({.period_seconds = 1}, 100);
  const auto after_steps_of = [&](milliseconds step) {
    schedule.note(1e9, step * schedule.period(), schedule.period());
    return schedule.period();
  };
  EXPECT_EQ(schedule.period(), 1);
  EXPECT_EQ(after_steps_of(milliseconds(100)), 2);  // at most doubles
  EXPECT_EQ(after_steps_of(milliseconds(100)), 4);
  EXPECT_EQ(after_steps_of(milliseconds(100)), 8);
  EXPECT_EQ(after_steps_of(milliseconds(100)), 10);
  EXPECT_EQ(after_steps_of(milliseconds(250)), 4);
  EXPECT_EQ(after_steps_of(milliseconds(5000)), 1);
  for (int i = 0; i < 10; ++i) (void)after_steps_of(milliseconds(1));
  EXPECT_EQ(schedule.period(), 100);
  // the shorter one counts
  AveragingSchedule both({.max_distance = 1, .period_seconds = 1}, 100);
  both.note(0.8 / 2, milliseconds(1), 1);
  EXPECT_EQ(both.period(), 2);
  both.note(0.8, milliseconds(1), 2);
  EXPECT_EQ(both.period(), 2);
  both.note(0.1, milliseconds(2000), 2);
  EXPECT_EQ(both.period(), 1);
}

// Each rank has its own clock, and all have the same period: else they would not meet.
TEST_F(ParameterAveraging, APeriodInSecondsIsTheSameOnAllRanks) {
  options.steps = 40;
  average(16);
  options.averaging.period_seconds = 1e-6;
  EXPECT_EQ(run(3).end.averaging->averages, 40);
  options.averaging.period_seconds = 1e6;
  const Outcome rare = run(3);
  EXPECT_EQ(rare.end.averaging->averages, 7);  // after 1, 2, 4, 8, 16, 32 and 40 steps
  EXPECT_EQ(rare.end.averaging->period, 16);
}

TEST(AveragingSchedule, PeriodFollowsTheDistanceBetweenOneAndTheLongest) {
  constexpr Duration kAnyTime = std::chrono::hours(1);
  AveragingSchedule schedule({.max_distance = 1}, 16);
  EXPECT_EQ(schedule.period(), 1);
  schedule.note(0.1, kAnyTime, 1);  // at most doubles
  EXPECT_EQ(schedule.period(), 2);
  schedule.note(0, kAnyTime, 2);
  EXPECT_EQ(schedule.period(), 4);
  schedule.note(0.5, kAnyTime, 4);
  EXPECT_EQ(schedule.period(), 6);  // 4 * 0.8 / 0.5
  schedule.note(2, kAnyTime, 6);
  EXPECT_EQ(schedule.period(), 2);
  schedule.note(100, kAnyTime, 2);
  EXPECT_EQ(schedule.period(), 1);
  for (int i = 0; i < 10; ++i) schedule.note(1e-9, kAnyTime, schedule.period());
  EXPECT_EQ(schedule.period(), 16);
  AveragingSchedule fixed({}, 16);
  fixed.note(100, kAnyTime, 16);
  EXPECT_EQ(fixed.period(), 16);
}

data::Batch all_of(const data::Dataset& dataset) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(dataset.size()));
  std::iota(indices.begin(), indices.end(), 0);
  return dataset.get(indices, 0);
}

/// One class after the other.
std::shared_ptr<data::Dataset> sorted(const data::Dataset& dataset) {
  const data::Batch all = all_of(dataset);
  const torch::Tensor order = all.target.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  return std::make_shared<test::RowsDataset>(all.input.index_select(0, order),
                                             all.target.index_select(0, order));
}

// With contiguous parts each rank sees one class, and most of what it learns is that class.
TEST_F(ParameterAveraging, OfSortedDataNeedsRepresentativeShards) {
  dataset = sorted(test::ToyDataset(1500));
  options.global_batch = 30;
  options.steps = 1000;
  options.optimizer.lr = 0.2;
  average(50);
  const auto accuracy = [&](data::Sharding sharding) {
    options.sharding = sharding;
    const auto module = test::make_toy_module(3);
    const torch::NoGradGuard no_grad;
    const Outcome out = run(3);
    for (auto& p : module->named_parameters()) p.value().copy_(out.values.at(p.key()));
    const data::Batch all = all_of(*dataset);
    const torch::Tensor right = all.target.eq(module->forward(all.input).argmax(1));
    return 100 * right.to(torch::kFloat64).mean().item<double>();
  };
  const double shuffled = accuracy(data::Sharding::kShuffled);
  EXPECT_GE(shuffled, 90);
  EXPECT_GE(accuracy(data::Sharding::kStratified), shuffled - 1);
  EXPECT_GE(accuracy(data::Sharding::kStrictStratified), shuffled - 1);
  EXPECT_LE(accuracy(data::Sharding::kContiguous), shuffled - 5);
}

TEST_F(ParameterAveraging, OneRankIsOneDevice) {
  average(4);
  const Outcome one = run(1);
  EXPECT_FALSE(one.end.averaging);
  options.strategy = {.kind = Strategy::Kind::kOneDevice};
  EXPECT_EQ(run(1).end.weights_hash, one.end.weights_hash);
}

TEST_F(ParameterAveraging, RefusesWhatHasNoMeaning) {
  options.strategy.parameters = Strategy::Parameters::kHostShared;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("leave out parameters"));
  options.strategy.parameters = Strategy::Parameters::kAuto;
  options.gradients.bucket_bytes = 1024;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("does not use strategy.bucket_bytes"));
  options.gradients.bucket_bytes = 0;
  average(0);
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("give at least 1 rank, and a period"));
}

}  // namespace
}  // namespace stormo::train
