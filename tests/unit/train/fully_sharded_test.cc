// Sharded training is the training of one process on the union of the batches: losses, parameters,
// clipping, accumulation; and it costs the memory that it promises.
#include <stormo/train/sharding/fully_sharded_data_parallel.h>

#include <stormo/train/wrap/distributed_data_parallel.h>

#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

using test::Batch;
using test::Outcome;
using test::Problem;

constexpr int kSteps = 4;
constexpr std::int64_t kRows = 7;  // 2, 3 and 4 ranks get batches of different size

const OptimizerOptions kAdamW{
    .kind = OptimizerOptions::Kind::kAdamW, .lr = 1e-2, .weight_decay = 0.1};

Outcome alone(const Problem& problem, double max_norm = 0, const OptimizerOptions& rule = kAdamW) {
  Outcome out;
  const auto model = problem.model(1);
  const auto optimizer = make_optimizer(rule, trainable_parameters(*model));
  for (const Batch& batch : problem.batches(kSteps, kRows)) {
    const torch::Tensor loss = model::cross_entropy(model->forward(batch.x), batch.target);
    loss.backward();
    if (max_norm > 0) clip_gradients(optimizer->parameters(), max_norm).take_or_throw();
    throw_if_error(optimizer->step(rule.lr));
    optimizer->zero_grad();
    out.losses.push_back(loss.item<double>());
  }
  out.parameters = test::values_of(*model);
  return out;
}

// The rows of rank r: as many as the others', or one more.
Batch part_of(const Batch& all, int rank, int ranks) {
  const std::int64_t rows = all.x.size(0), first = rows * rank / ranks;
  return all.rows(first, rows * (rank + 1) / ranks - first);
}

// Every rank starts with other weights; rank 0's count.
std::vector<std::shared_ptr<model::Chain>> models(const Problem& problem, int ranks) {
  std::vector<std::shared_ptr<model::Chain>> out;
  for (int r = 0; r < ranks; ++r) out.push_back(problem.model(1 + static_cast<std::uint64_t>(r)));
  return out;
}

struct Run {
  ShardingOptions options;
  double max_norm = 0;
  OptimizerOptions rule = kAdamW;
};

Outcome sharded(const Problem& problem, int ranks, const Run& run) {
  const auto replicas = models(problem, ranks);
  const auto batches = problem.batches(kSteps, kRows);
  Outcome out;
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(ranks));
  test::on_ranks(ranks, [&](comm::Communicator& c) {
    const auto model = replicas[static_cast<std::size_t>(c.rank())];
    FullyShardedDataParallel fsdp(c, model, run.options);
    const auto optimizer = fsdp.make_optimizer(run.rule);
    for (const Batch& batch : batches) {
      const Batch mine = part_of(batch, c.rank(), ranks);
      const auto rows = static_cast<double>(mine.x.size(0));
      fsdp.set_weight(rows);
      const torch::Tensor loss = model::cross_entropy(fsdp.forward(mine.x), mine.target);
      loss.backward();
      if (run.max_norm > 0) fsdp.clip_gradients(run.max_norm);
      fsdp.step(*optimizer, run.rule.lr);
      fsdp.zero_grad();
      losses[static_cast<std::size_t>(c.rank())].push_back(loss.item<double>() * rows / kRows);
    }
    const auto whole = fsdp.gathered();
    if (c.rank() == ranks - 1) out.parameters = test::values_of(*model);
  });
  for (std::size_t i = 0; i < batches.size(); ++i) {
    out.losses.push_back(0);
    for (const auto& of_rank : losses) out.losses.back() += of_rank[i];
  }
  return out;
}

TEST(FullySharded, AnyStageOnAnyNumberOfRanksIsOneProcess) {
  for (const Problem& problem : {test::mlp_problem(), test::cnn_problem(), test::gpt_problem()}) {
    const Outcome wanted = alone(problem);
    for (const int stage : {1, 2, 3}) {
      for (const int ranks : {1, 2, 3, 4}) {
        const Outcome got = sharded(problem, ranks, {.options = {.stage = stage}});
        EXPECT_LE(test::difference(got, wanted), 1e-10)
            << problem.name << ", stage " << stage << ", " << ranks << " ranks";
      }
    }
  }
}

// Every rank would make others; rank 0's count.
TEST(FullySharded, TakesAModelThatLacksValuesUnitByUnit) {
  Problem later = test::gpt_problem();
  later.build = [build = later.build] {
    const model::ValuesLater scope;
    return build();
  };
  for (const int ranks : {1, 3}) {
    EXPECT_EQ(test::difference(sharded(later, ranks, {}), sharded(test::gpt_problem(), ranks, {})),
              0);
  }
}

TEST(FullySharded, OneRankIsOneProcessBitForBit) {
  for (const int stage : {1, 3}) {
    EXPECT_EQ(test::difference(sharded(test::gpt_problem(), 1, {.options = {.stage = stage}}),
                               alone(test::gpt_problem())),
              0);
  }
}

TEST(FullySharded, WhenUnitsAreGatheredChangesNothing) {
  const Outcome wanted = sharded(test::gpt_problem(), 3, {});
  for (const int prefetch : {0, 2, 9}) {
    for (const bool reshard : {true, false}) {
      const ShardingOptions options{.reshard_after_forward = reshard, .prefetch = prefetch};
      EXPECT_EQ(test::difference(sharded(test::gpt_problem(), 3, {.options = options}), wanted), 0)
          << prefetch << " " << reshard;
    }
  }
}

TEST(FullySharded, ClippingIsByTheNormOverAllRanks) {
  const Outcome wanted = alone(test::mlp_problem(), 0.05);
  EXPECT_GT(test::difference(wanted, alone(test::mlp_problem())), 1e-3);  // it does clip
  for (const int stage : {2, 3}) {
    EXPECT_LE(test::difference(sharded(test::mlp_problem(), 3, {{.stage = stage}, 0.05}), wanted),
              1e-10);
  }
}

// The norms of LAMB are those of whole parameters, which lie on several ranks.
TEST(FullySharded, NormsOfParametersAreOverAllRanks) {
  const OptimizerOptions lamb{
      .kind = OptimizerOptions::Kind::kLamb, .lr = 1e-2, .weight_decay = 0.1};
  const Outcome wanted = alone(test::mlp_problem(), 0, lamb);
  EXPECT_LE(test::difference(sharded(test::mlp_problem(), 3, {.rule = lamb}), wanted), 1e-10);
}

}  // namespace
}  // namespace stormo::train
