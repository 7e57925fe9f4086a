// Vertical sharding: ranks with columns of the samples, one of which has the targets, do what the
// plan says and train as one process does that has all columns.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <stormo/model/loss.h>
#include <stormo/model/mlp.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/estimate/step_sizes.h>

#include "tests/unit/train/columns.h"
#include "tests/unit/train/plan_run.h"
#include "tests/unit/train/predicted_cost.h"

namespace stormo::train {
namespace {

using Kind = OptimizerOptions::Kind;
using parallel::StepOptions;
using test::Batch;
using test::PlanRank;
using test::PlanResult;
using test::PlanRun;
using test::Problem;

constexpr std::int64_t kColumns = 20;

/// One way to train.
struct Way {
  std::string name;
  std::vector<int> hosts;  // ranks of each
  int labels = 0;
  std::vector<std::int64_t> columns = {};
  StepOptions step = {};
  std::vector<std::int64_t> sizes = {kColumns, 33, 17, 5};
  bool numbers = false;  // targets
  bool half = false;
  Kind optimizer = Kind::kAdamW;
};

std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

Problem problem_of(const Way& way) {
  return {"mlp",
          [sizes = way.sizes] {
            return std::make_shared<model::Mlp>(sizes, model::MlpCut::kByColumns);
          },
          [way](std::int64_t rows) {
            const torch::Tensor x = torch::randn({rows, kColumns}, torch::kFloat64);
            if (way.numbers) return Batch{x, torch::randn({rows}, torch::kFloat64)};
            return Batch{x, torch::randint(way.sizes.back(), {rows})};
          },
          way.half ? torch::kFloat32 : torch::kFloat64};
}

PlanRun run_of(const Way& way, const std::vector<Batch>& batches) {
  const Strategy strategy{
      .kind = Strategy::Kind::kVertical, .labels = way.labels, .column_counts = way.columns};
  TrainerOptions options;
  options.strategy = strategy;
  options.optimizer = {.kind = way.optimizer, .lr = 0.01};
  options.clip_norm = way.step.clip ? 0.5 : 0;
  const Problem problem = problem_of(way);
  StepOptions step = way.step;
  step.trust_ratios = optim::needs_norms(way.optimizer);
  return {.plan = parallel::plan_for(strategy, problem.model(3)->split_shape(),
                                     {.ranks_per_host = way.hosts}, step)
                      .take_or_throw(),
          .hosts = way.hosts,
          .problem = problem,
          .batches = batches,
          .options = options,
          .half = way.half};
}

std::vector<PlanResult> train(const Way& way, const std::vector<Batch>& batches) {
  const PlanRun run = run_of(way, batches);
  std::vector<PlanResult> out(static_cast<std::size_t>(run.ranks()));
  on_plan_ranks(run, [&](PlanRank& rank) {
    test::take_columns(rank, way.labels,
                       way.numbers ? model::mean_squared_error : model::cross_entropy);
    PlanResult& mine = out[static_cast<std::size_t>(rank.rank())];
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const std::uint64_t before = rank.groups.bytes_sent();
      mine.losses.push_back(rank.try_step().take_or_throw().loss_sum);
      mine.sent.push_back(rank.groups.bytes_sent() - before);
    }
    mine.trace = std::move(rank.trace);
    mine.values = rank.values();
    throw_if_error(rank.groups.world().barrier());
  });
  return out;
}

class Vertical : public testing::TestWithParam<Way> {};

TEST_P(Vertical, IsThePlanAndTrainsAsWithAllColumns) {
  const Way& way = GetParam();
  std::vector<Batch> batches = problem_of(way).batches(23, 12);
  batches.push_back(batches[0].rows(0, 1));  // some micro-batches have none
  const PlanRun all = run_of(way, batches);
  const std::vector<PlanResult> runs = train(way, batches);
  Way one = way;
  one.hosts = {1};
  one.labels = 0;
  one.columns = {};
  const PlanResult reference = train(one, batches)[0];
  const double most = way.half ? 2e-2 : 1e-10;
  std::vector<double> losses(batches.size());
  for (std::size_t r = 0; r < runs.size(); ++r) {
    test::expect_trace(runs[r].trace, project(all.plan, static_cast<Rank>(r)), batches.size());
    test::expect_near(runs[r].values, reference.values, most, way.name);
    test::expect_near(runs[r].values, runs[0].values, 0, way.name);
    for (std::size_t i = 0; i < losses.size(); ++i) losses[i] += runs[r].losses[i];
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], reference.losses[i], way.half ? 1 : most) << "step " << i;
  }
  EXPECT_NE(losses[0], losses[20]);
}

TEST_P(Vertical, SendsWhatItsPlanPredicts) {
  const Way& way = GetParam();
  const PlanRun all = run_of(way, {});
  analysis::StepSizes sizes = step_sizes_of(all.options);
  sizes.agreed_numbers = 0;  // no run, no agreement
  sizes.samples = 12 / way.step.micro_batches;
  if (way.half) sizes.computes_in = DType::kFloat16;
  const analysis::StepCost cost = test::predicted_cost(all, sizes);
  EXPECT_EQ(cost.total().between_hosts > 0, way.hosts.size() > 1);
  const std::vector<PlanResult> runs = train(way, problem_of(way).batches(2, 12));
  for (std::size_t r = 0; r < runs.size(); ++r) {
    EXPECT_EQ(runs[r].sent[1], static_cast<std::uint64_t>(cost.ranks[r].between_hosts))
        << "rank " << r << " of\n"
        << to_text(all.plan);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Vertical,
    testing::Values(
        Way{"even", {2}}, Way{"uneven", {2}, 1, {3, 17}}, Way{"three", {3}, 2, {1, 12, 7}},
        Way{"four", {4}, 3, {9, 1, 1, 9}}, Way{"two_hosts", {1, 1}, 1, {13, 7}},
        Way{"hosts_of_two", {2, 2}, 2, {5, 4, 1, 10}}, Way{"three_hosts", {1, 2, 1}, 1},
        Way{"micro_batches", {2, 1}, 2, {5, 5, 10}, {.micro_batches = 3, .clip = true}},
        Way{"recomputed", {1, 1}, 0, {}, {.micro_batches = 2, .recompute = true}},
        Way{"one_layer", {1, 1}, 1, {19, 1}, {}, {kColumns, 4}},
        Way{"numbers", {1, 1}, 1, {2, 18}, {}, {kColumns, 9, 1}, true},
        Way{"half", {1, 1}, 1, {8, 12}, {.scale_loss = true}, {kColumns, 33, 5}, false, true},
        Way{.name = "lars", .hosts = {1, 1}, .columns = {5, 15}, .optimizer = Kind::kLars},
        Way{.name = "lamb", .hosts = {1, 2}, .labels = 1, .optimizer = Kind::kLamb}),
    [](const auto& way) { return way.param.name; });

// The gradient that the rank with the labels sends is that of the loss, whatever it is scaled by.
TEST(OwnedLoss, IsThatOfTheOwnerOnAllRanks) {
  torch::manual_seed(1);
  const torch::Tensor logits = torch::randn({6, 4}, torch::kFloat64);
  const torch::Tensor target = torch::randint(4, {6});
  const torch::Tensor leaf = logits.clone().requires_grad_();
  const torch::Tensor expected = model::cross_entropy(leaf, target);
  (expected * 3).backward();
  test::on_ranks(3, [&](comm::Communicator& world) {
    const tensor::TensorParallelGroup ranks(world);
    const torch::Tensor mine = logits.clone().requires_grad_();
    bool called = false;
    const torch::Tensor loss = model::owned_loss(
        mine,
        [&](const torch::Tensor& output) {
          called = true;
          return model::cross_entropy(output, target);
        },
        ranks, 2);
    EXPECT_EQ(called, world.rank() == 2);
    EXPECT_EQ(loss.item<double>(), expected.item<double>());
    (loss * 3).backward();
    EXPECT_LE((mine.grad() - leaf.grad()).abs().max().item<double>(), 1e-15);
  });
}

}  // namespace
}  // namespace stormo::train
