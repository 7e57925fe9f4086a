// What sharded training costs: bytes of model state, and bytes between hosts.
#include <map>
#include <mutex>
#include <set>

#include <stormo/parallel/sharding/model_state.h>

#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

using test::Batch;
using test::Problem;

const OptimizerOptions kMixedAdamW{.kind = OptimizerOptions::Kind::kAdamW, .lr = 1e-3};

Problem wide_problem() {
  return {.name = "wide mlp",
          .build =
              [] {
                return std::make_shared<model::Mlp>(std::vector<std::int64_t>{96, 160, 96, 32});
              },
          .draw =
              [](std::int64_t rows) {
                return Batch{torch::randn({rows, 96}), torch::randint(32, {rows})};
              },
          .type = torch::kFloat32};
}

std::int64_t num_parameters(const torch::nn::Module& module) {
  std::int64_t n = 0;
  for (const auto& p : module.parameters()) n += p.numel();
  return n;
}

void backward(FullyShardedDataParallel& fsdp, const Batch& batch) {
  model::cross_entropy(fsdp.forward(batch.x), batch.target).backward();
}

// The formulas are those of the paper, written out; each term is a figure that somebody expects.
TEST(ShardingCost, ModelStateIsThatOfTheFormula) {
  const Problem problem = wide_problem();
  const Batch batch = problem.batches(1, 4).front();
  for (const int ranks : {2, 4}) {
    const double n = ranks;
    const double bytes_per_parameter[] = {0, 4 + 12 / n, 2 + 14 / n, 16 / n};
    for (const int stage : {1, 2, 3}) {
      std::vector<std::shared_ptr<model::Chain>> models;
      for (int r = 0; r < ranks; ++r) models.push_back(problem.model(1));
      const auto elements = static_cast<double>(num_parameters(*models[0]));
      EXPECT_EQ(parallel::model_state_bytes(stage, ranks, num_parameters(*models[0])),
                bytes_per_parameter[stage] * elements);
      test::on_ranks(ranks, [&](comm::Communicator& c) {
        FullyShardedDataParallel fsdp(
            c, models[static_cast<std::size_t>(c.rank())],
            {.stage = stage,
             .precision = {.compute = torch::kBFloat16, .reduce = torch::kBFloat16}});
        const auto optimizer = fsdp.make_optimizer(kMixedAdamW);
        backward(fsdp, batch);
        fsdp.step(*optimizer, kMixedAdamW.lr);
        fsdp.zero_grad();
        backward(fsdp, batch);
        const ShardingMemory memory = fsdp.memory_report(optimizer.get());
        const double wanted = bytes_per_parameter[stage] * elements;
        EXPECT_NEAR(static_cast<double>(memory.total()), wanted, 0.05 * wanted)
            << "stage " << stage << ", " << ranks << " ranks: " << memory.parameters << " "
            << memory.gradients << " " << memory.optimizer;
        EXPECT_NEAR(static_cast<double>(memory.predicted), wanted, 0.01 * wanted);
      });
    }
  }
}

// Stage 3 holds no whole unit once a pass is over, and its memory is really gone.
TEST(ShardingCost, AUnitHasNoMemoryBetweenItsUses) {
  const auto model = wide_problem().model(1), other = wide_problem().model(1);
  test::on_ranks(2, [&](comm::Communicator& c) {
    const auto mine = c.rank() == 0 ? model : other;
    FullyShardedDataParallel fsdp(c, mine);
    const auto bytes = [&] {
      std::size_t sum = 0;
      for (const auto& p : mine->parameters()) sum += p.storage().nbytes();
      return sum;
    };
    EXPECT_EQ(bytes(), 0u);
    {
      const auto whole = fsdp.gathered();
      EXPECT_GT(bytes(), 0u);
    }
    EXPECT_EQ(bytes(), 0u);
    const auto loss = fsdp.forward(torch::randn({2, 96})).sum();
    EXPECT_EQ(bytes(), 0u);
    loss.backward();
    EXPECT_EQ(bytes(), 0u);
  });
}

// Where each unit has gathered them: no copy is made.
TEST(ShardingCost, AModuleThatIsLeftWholeKeepsItsValuesInPlace) {
  for (const int stage : {1, 3}) {
    const auto model = wide_problem().model(1), other = wide_problem().model(2);
    const test::Values wanted = test::values_of(*model);
    test::on_ranks(2, [&](comm::Communicator& c) {
      const auto mine = c.rank() == 0 ? model : other;
      std::map<std::string, const void*> places;
      {
        FullyShardedDataParallel fsdp(c, mine, {.stage = stage});
        const auto whole = fsdp.gathered();
        for (const auto& p : mine->named_parameters()) places[p.key()] = p.value().data_ptr();
        fsdp.keep_gathered();
      }
      for (const auto& p : mine->named_parameters()) {
        EXPECT_EQ(p.value().data_ptr(), places.at(p.key())) << p.key();
        EXPECT_TRUE(p.value().equal(wanted.at(p.key()))) << p.key() << ", stage " << stage;
      }
    });
  }
}

/// Bytes of one step after the first, all ranks together, and what one copy of the model has with
/// alignment.
struct Traffic {
  std::uint64_t sent = 0;
  std::uint64_t small = 0;  ///< at most: weights and flags
  std::uint64_t model = 0;
};

Traffic traffic(int ranks, const ShardingOptions& options) {
  const Problem problem = wide_problem();
  const Batch batch = problem.batches(1, 4).front();
  std::vector<std::shared_ptr<model::Chain>> models;
  for (int r = 0; r < ranks; ++r) models.push_back(problem.model(1));
  test::Group group = comm::make_hosts(std::vector<int>(static_cast<std::size_t>(ranks), 1));
  Traffic out;
  std::mutex mutex;
  test::on_ranks(group, [&](comm::Communicator& c) {
    const auto model = models[static_cast<std::size_t>(c.rank())];
    FullyShardedDataParallel fsdp(c, model, options);
    backward(fsdp, batch);
    fsdp.zero_grad();
    const std::uint64_t before = c.bytes_sent();
    backward(fsdp, batch);
    const std::uint64_t after = c.bytes_sent();
    const auto n = static_cast<std::uint64_t>(ranks);
    const auto whole = fsdp.gathered();
    const std::lock_guard lock(mutex);
    out.sent += after - before;
    // an all-reduce of a few bytes may go to everyone
    out.small = n * (n - 1) * (sizeof(double) + model->parameters().size());
    out.model = 0;
    std::set<const void*> seen;
    for (const auto& p : model->parameters()) {
      if (seen.insert(p.storage().data()).second) out.model += p.storage().nbytes();
    }
  });
  return out;
}

TEST(ShardingCost, TrafficIsTwiceOrThriceTheModel) {
  for (const int ranks : {2, 3}) {
    for (const int stage : {1, 2, 3}) {
      const Traffic t = traffic(ranks, {.stage = stage});
      // per rank 2K(N-1)/N, or 3K(N-1)/N
      const std::uint64_t wanted =
          (stage == 3 ? 3 : 2) * t.model * static_cast<std::uint64_t>(ranks - 1);
      EXPECT_GE(t.sent, wanted) << ranks << " ranks, stage " << stage;
      EXPECT_LE(t.sent, wanted + t.small) << ranks << " ranks, stage " << stage;
      EXPECT_LT(t.small, wanted / 100);
    }
  }
  const Traffic kept = traffic(2, {.reshard_after_forward = false});
  EXPECT_LE(kept.sent, 2 * kept.model + kept.small);
}

// Two hosts of two ranks: only halves cross, twice (M-1)/M of them.
TEST(ShardingCost, HybridSendsPartsBetweenHosts) {
  Problem problem = wide_problem();
  problem.type = torch::kFloat64;
  const Batch batch = problem.batches(1, 4).front();
  std::vector<std::shared_ptr<model::Chain>> models;
  for (int r = 0; r < 5; ++r) models.push_back(problem.model(1));
  test::Group world = comm::make_hosts({2, 2});
  test::Group hosts[] = {comm::make_hosts({2}), comm::make_hosts({2})};
  test::Group pairs[] = {comm::make_hosts({1, 1}), comm::make_hosts({1, 1})};
  const auto alone = make_optimizer(kMixedAdamW, trainable_parameters(*models[4]));
  for (int i = 0; i < 2; ++i) {
    model::cross_entropy(models[4]->forward(batch.x), batch.target).backward();
    throw_if_error(alone->step(kMixedAdamW.lr));
    alone->zero_grad();
  }
  std::mutex mutex;
  test::on_ranks(world, [&](comm::Communicator& c) {
    const auto host = static_cast<std::size_t>(c.cross_rank()),
               local = static_cast<std::size_t>(c.local_rank());
    comm::Communicator& replicas = *pairs[local][host];
    const auto model = models[static_cast<std::size_t>(c.rank())];
    FullyShardedDataParallel fsdp({&c, hosts[host][local].get(), &replicas}, {});
    fsdp.shard(model);
    const auto optimizer = fsdp.make_optimizer(kMixedAdamW);
    backward(fsdp, batch.rows(c.rank(), 1));
    fsdp.step(*optimizer, kMixedAdamW.lr);
    fsdp.zero_grad();
    const std::uint64_t before = replicas.bytes_sent(), world_before = c.bytes_sent();
    backward(fsdp, batch.rows(c.rank(), 1));
    EXPECT_LT(c.bytes_sent() - world_before, 200u);  // weights and flags only
    std::uint64_t part = 0;
    for (const TensorPiece& piece : fsdp.state()) part += piece.values.nbytes();
    const std::uint64_t sent = replicas.bytes_sent() - before;
    EXPECT_GE(sent, part);             // 2(M-1)/M K/L, M = 2
    EXPECT_LE(sent, part + 3 * 1024);  // alignment of 3 units
    fsdp.step(*optimizer, kMixedAdamW.lr);
    const auto whole = fsdp.gathered();
    const std::lock_guard lock(mutex);
    for (const auto& p : model->named_parameters()) {
      EXPECT_TRUE(torch::allclose(p.value(), models[4]->named_parameters()[p.key()], 0, 1e-10))
          << p.key();
    }
  });
}

}  // namespace
}  // namespace stormo::train
