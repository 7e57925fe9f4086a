// Every strategy trains every model with the losses of one process, wherever its ranks are.
#include <algorithm>
#include <set>

#include "tests/long.h"
#include "tests/unit/train/trained_job.h"
#include "tests/ways.h"

namespace stormo {
namespace {

using namespace stormo::test;

struct Row {
  Words words;  // of the worker program
  parallel::Strategy strategy;
};

/// Those that train as one process does, and cuts of the model.
std::vector<Row> rows() {
  std::vector<Row> out = {{{"strategy=ddp", "pipeline=2", "micro_batches=2"}, {.pipeline = 2}},
                          {{"strategy=ddp", "pipeline=3", "micro_batches=3"}, {.pipeline = 3}},
                          {{"strategy=ddp", "tensor=2"}, {.tensor = 2}},
                          {{"strategy=ddp", "pipeline=2", "tensor=2", "micro_batches=2"},
                           {.pipeline = 2, .tensor = 2}}};
  for (const Way& way : ways()) {
    if (way.trains_as_one()) out.push_back({{"way=" + way.name}, way.strategy});
  }
  return out;
}

const std::vector<std::string> kModels = {"mlp", "cnn", "gpt"};
const std::vector<Placement> kPlacements = {{2, 1}, {3, 2}, {4, 2}, {4, 1}, {2, 2}, {3, 1}};
constexpr std::size_t kDifferent = 3;  // of them; the others in the long form

bool fits(const Row& row, const Placement& p) {
  std::vector<int> hosts(static_cast<std::size_t>(p.hosts), p.ranks / p.hosts);
  for (int i = 0; i < p.ranks % p.hosts; ++i) ++hosts[static_cast<std::size_t>(i)];
  return check_strategy(row.strategy, {.ranks_per_host = hosts}).ok();
}

class Matrix : public DistributedTrainer {
 protected:
  static Words training(const std::string& model, const Words& strategy) {
    return joined(strategy,
                  {"model=" + model, "batch=10", "adamw=1", "verify_every=5", "verify_state=2"});
  }
};

// Batches of 10 of 47 samples: their parts are uneven on 3 and 4 ranks, and so is the last batch.
TEST_F(Matrix, EveryStrategyHasTheLossesOfOneProcess) {
  const std::vector<Row> all = rows();
  std::vector<Words> trainings;
  for (const std::string& model : kModels) {
    trainings.push_back(training(model, {"strategy=one_device"}));
  }
  const auto alone = train_each(1, trainings);
  std::size_t in_all = 0;
  std::set<std::size_t> placed;  // rows that have had a placement
  const std::size_t placements = is_long_form() ? kPlacements.size() : kDifferent;
  for (std::size_t p = 0; p < placements; ++p) {
    const Placement& placement = kPlacements[p];
    trainings.clear();
    std::vector<std::size_t> models;  // of the trainings
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (!fits(all[r], placement)) continue;
      const bool is_first = placed.insert(r).second;
      for (std::size_t m = 0; m < kModels.size(); ++m) {
        // in the short form each row has all models once, and then one of them in turn
        if (!is_long_form() && !is_first && (m + r + p) % kModels.size() != 0) continue;
        trainings.push_back(training(kModels[m], all[r].words));
        models.push_back(m);
      }
    }
    const auto runs = train_each(placement, trainings);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      expect_equal_losses(runs[i], alone[models[i]],
                          ::testing::PrintToString(trainings[i]) + ", " +
                              std::to_string(placement.ranks) + " ranks, " +
                              std::to_string(placement.hosts) + " host(s)");
      EXPECT_TRUE(runs[i].mismatches.empty()) << ::testing::PrintToString(trainings[i]);
    }
    in_all += runs.size();
  }
  std::printf("%zu trainings\n", in_all);
  EXPECT_GE(in_all, is_long_form() ? 225u : 60u);
}

// Gradients that are rounded on their way change the losses by as little; where nothing travels
// between ranks, nothing is rounded. Codecs that leave less of them need more steps than these.
TEST_F(Matrix, FewerBitsBetweenRanks) {
  const Words own = {"strategy=ddp", "parameters=replicated"};
  const RankFile wide = train(2, training("mlp", own));
  struct Case {
    const char* strategy;
    const char* parameters;
    const char* codec;
    double most;  // difference of a loss from that without a codec, relative
  };
  const std::vector<Case> cases = {
      {"ddp", "replicated", "bfloat16", 0.01},  {"ddp", "replicated", "float16", 0.01},
      {"ddp", "replicated", "int8", 0.03},      {"fsdp", "sharded", "int8", 0.03},
      {"ddp", "replicated", "int4", 0.3},       {"fsdp", "sharded", "qsgd", 0.3},
      {"ddp", "replicated", "powersgd", 0.3},   {"ddp", "host_shared", "powersgd", 0.3},
      {"ddp", "host_shared", "bfloat16", 0.01}, {"fsdp", "sharded", "bfloat16", 0.01}};
  std::vector<Words> trainings;
  for (const Case& c : cases) {
    trainings.push_back(training(
        "mlp", {std::string("strategy=") + c.strategy, std::string("parameters=") + c.parameters,
                std::string("compression=") + c.codec}));
  }
  for (const int hosts : {1, 2}) {
    const auto runs = train_each({2, hosts}, trainings);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Case& c = cases[i];
      SCOPED_TRACE(::testing::Message()
                   << c.codec << " " << c.parameters << ", " << hosts << " host(s)");
      ASSERT_EQ(runs[i].losses.size(), wide.losses.size());
      const bool travels = hosts == 2 || std::string(c.parameters) != "host_shared";
      double difference = 0;
      for (const auto& [step, loss] : wide.losses) {
        difference = std::max(difference, std::fabs(runs[i].losses.at(step) - loss) / loss);
      }
      EXPECT_LT(difference, travels ? c.most : 1e-10);
      EXPECT_TRUE(difference > 1e-6 || !travels);
    }
  }
}

}  // namespace
}  // namespace stormo
