// Checkpoints of models of which a part is not trained, by every way to hold parameters.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include <stormo/base/temporary_folder.h>
#include <stormo/train/run/trainer.h>

#include "tests/unit/train/plan_run.h"
#include "tests/unit/train/toy.h"
#include "tests/ways.h"

namespace stormo::train {
namespace {

using test::Way;

class FrozenCheckpoint : public ::testing::TestWithParam<Way> {
 protected:
  FrozenCheckpoint() {
    options.strategy = GetParam().strategy;
    options.global_batch = 8;
    options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
    options.gradients.overlap = false;
  }

  /// Trains on two ranks up to step `steps`; the values of rank 1.
  test::Values train(std::int64_t steps) {
    options.steps = steps;
    std::vector<std::shared_ptr<model::Chain>> models;
    for (int r = 0; r < 2; ++r) {
      models.push_back(test::mlp_problem().model(3));
      for (const torch::Tensor& p : models.back()->segments()[1]->parameters()) {
        p.set_requires_grad(false);
      }
    }
    const auto data = std::make_shared<test::ToyDataset>(40);
    test::on_ranks(2, [&](comm::Communicator& world) {
      const auto chain = models[static_cast<std::size_t>(world.rank())];
      Task task;
      task.module = chain;
      task.forward = [chain](const torch::Tensor& x) { return chain->forward(x); };
      task.loss = model::cross_entropy;
      Trainer(world, task, data, {}, options).run().take_or_throw();
    });
    return HasFailure() ? test::Values() : test::values_of(*models[1]);
  }

  TrainerOptions options;
};

TEST_P(FrozenCheckpoint, ContinuesToTheSameBits) {
  const test::Values at_once = train(4);
  const TemporaryFolder folder = TemporaryFolder::create("stormo_frozen").take_or_throw();
  options.checkpoint.directory = folder.path();
  train(2);
  options.resume = true;
  const test::Values resumed = train(4);
  test::expect_near(resumed, at_once, 0, "resumed");
}

std::vector<Way> ways() {
  std::vector<Way> out = test::ways_on({2});
  std::erase_if(out, [](const Way& way) { return !way.trains_as_one(); });
  return out;
}

INSTANTIATE_TEST_SUITE_P(EveryStore, FrozenCheckpoint, ::testing::ValuesIn(ways()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace stormo::train
