// Every strategy trains every model with the losses of one process, wherever its ranks are.
#include <algorithm>
#include <cstdlib>

#include "tests/unit/train/trained_job.h"

namespace stormo {
namespace {

using namespace stormo::test;

struct Row {
  std::vector<std::string> strategy;
  bool one_host = false;  // refuses more
  bool uniform = false;   // wants as many ranks on each host
};

const std::vector<Row> kStrategies = {
    {.strategy = {"strategy=mirrored"}, .one_host = true},
    {.strategy = {"strategy=multi_worker_mirrored"}},
    {.strategy = {"strategy=central_storage"}, .one_host = true},
    {.strategy = {"strategy=ddp"}},
    {.strategy = {"strategy=ddp", "parameters=replicated"}},
    {.strategy = {"strategy=ddp", "parameters=host_shared"}, .uniform = true},
    {.strategy = {"strategy=fsdp", "parameters=sharded", "stage=1"}},
    {.strategy = {"strategy=fsdp", "parameters=sharded", "stage=2"}},
    {.strategy = {"strategy=fsdp", "parameters=sharded", "stage=3"}},
    {.strategy = {"strategy=fsdp", "parameters=sharded", "stage=3", "hybrid=1"}, .uniform = true},
};
const std::vector<std::string> kModels = {"mlp", "cnn", "gpt"};
const std::vector<Placement> kPlacements = {{2, 1}, {3, 2}, {4, 1}, {2, 2}, {3, 1}, {4, 2}};

bool fits(const Row& row, const Placement& p) {
  return !(p.hosts > 1 && row.one_host) && !(p.ranks % p.hosts != 0 && row.uniform);
}

class Matrix : public DistributedTrainer {
 protected:
  RankFile job(const Placement& placement, const std::string& model,
               std::vector<std::string> strategy) {
    strategy.insert(strategy.end(), {"model=" + model, "batch=10", "adamw=1", "verify_every=5"});
    return train(placement, strategy);
  }
};

// Batches of 10 of 47 samples: their parts are uneven on 3 and 4 ranks, and so is the last batch.
// By default each strategy trains every model, in another placement each; ./check --full runs the
// product.
TEST_F(Matrix, EveryStrategyHasTheLossesOfOneProcess) {
  const bool full = std::getenv("STORMO_FULL_TESTS") != nullptr;
  std::map<std::string, RankFile> alone;
  for (const std::string& model : kModels) {
    alone[model] = job(1, model, {"strategy=one_device"});
    ASSERT_FALSE(alone[model].losses.empty());
  }
  int jobs = 0;
  for (std::size_t s = 0; s < kStrategies.size(); ++s) {
    const Row& row = kStrategies[s];
    for (std::size_t m = 0; m < kModels.size(); ++m) {
      for (std::size_t p = 0; p < kPlacements.size(); ++p) {
        const Placement& placement = kPlacements[p];
        const bool chosen = p == (s + m) % kPlacements.size();
        if (!fits(row, placement) || !(full || chosen)) continue;
        ++jobs;
        const std::string what = row.strategy.back() + " of " + row.strategy.front() + ", " +
                                 kModels[m] + ", " + std::to_string(placement.ranks) + " ranks, " +
                                 std::to_string(placement.hosts) + " host(s)";
        expect_equal_losses(job(placement, kModels[m], row.strategy), alone[kModels[m]], what);
      }
    }
  }
  std::printf("%d jobs\n", jobs);
  EXPECT_GE(jobs, full ? 144 : 20);
}

// Gradients that are rounded on their way change the losses by as little; where nothing travels
// between ranks, nothing is rounded.
TEST_F(Matrix, SixteenBitsBetweenRanks) {
  const std::vector<std::string> own = {"strategy=ddp", "parameters=replicated"};
  const RankFile wide = job(2, "mlp", own);
  for (const std::vector<std::string>& strategy :
       {std::vector<std::string>{"strategy=ddp", "parameters=replicated", "reduce_type=bfloat16"},
        {"strategy=ddp", "parameters=replicated", "reduce_type=float16"},
        {"strategy=ddp", "parameters=host_shared", "reduce_type=bfloat16"},
        {"strategy=fsdp", "parameters=sharded", "reduce_type=bfloat16"}}) {
    for (const int hosts : {1, 2}) {
      const RankFile narrow = job({2, hosts}, "mlp", strategy);
      ASSERT_EQ(narrow.losses.size(), wide.losses.size());
      const bool travels = hosts == 2 || strategy[1] != "parameters=host_shared";
      double difference = 0;
      for (const auto& [step, loss] : wide.losses) {
        difference = std::max(difference, std::fabs(narrow.losses.at(step) - loss) / loss);
      }
      EXPECT_LT(difference, travels ? 0.01 : 1e-10) << strategy[1] << ", " << hosts << " host(s)";
      EXPECT_TRUE(difference > 1e-6 || !travels) << strategy[1] << ", " << hosts << " host(s)";
    }
  }
}

}  // namespace
}  // namespace stormo
