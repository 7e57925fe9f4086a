// A program that leaves the choice of the strategy to the Trainer.
#include <stormo/train/planner/choose.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include <gmock/gmock.h>

#include <stormo/train/run/trainer.h>
#include <stormo/train/world/run_replicas.h>

#include "toy.h"

namespace stormo::train {
namespace {

using test::ToyModule;
using Modules = std::vector<std::shared_ptr<ToyModule>>;

TrainerOptions options_with(const Strategy& strategy) {
  TrainerOptions options;
  options.strategy = strategy;
  options.global_batch = 12;
  options.steps = 20;
  return options;
}

Modules modules_of(int ranks) {
  Modules out;
  for (int r = 0; r < ranks; ++r) out.push_back(test::make_toy_module(3));
  return out;
}

double distance(const ToyModule& a, const ToyModule& b) {
  double most = 0;
  const auto others = b.parameters();
  for (std::size_t i = 0; const torch::Tensor& p : a.parameters()) {
    most = std::max(most, (p - others[i++]).abs().max().item<double>());
  }
  return most;
}

/// Trains on `ranks` threads; the modules of all ranks.
Modules trained(int ranks, const TrainerOptions& options) {
  const auto data = std::make_shared<test::ToyDataset>(96);
  const Modules modules = modules_of(ranks);
  run_replicas(ranks, [&](comm::Communicator& world) {
    Trainer trainer(world, test::toy_task(modules[static_cast<std::size_t>(world.rank())]), data,
                    {}, options);
    EXPECT_EQ(trainer.run().take_or_throw().steps, options.steps);
    EXPECT_EQ(trainer.plan().mesh.size(), world.size());
  });
  return modules;
}

TEST(Auto, TrainsAsOneProcess) {
  const auto one = trained(1, options_with({.kind = Strategy::Kind::kOneDevice}))[0];
  EXPECT_GT(distance(*one, *test::make_toy_module(3)), 1e-3);
  for (const int ranks : {1, 2}) {
    for (const auto& module : trained(ranks, options_with({.kind = Strategy::Kind::kAuto}))) {
      EXPECT_LT(distance(*module, *one), 1e-9);  // sums of 12 losses in another order
    }
  }
}

TEST(Auto, RefusesOnAllRanksWhatIsWrongBeside) {
  TrainerOptions options = options_with({.kind = Strategy::Kind::kAuto});
  options.global_batch = 0;
  const Modules modules = modules_of(2);
  run_replicas(2, [&](comm::Communicator& world) {
    Trainer trainer(world, test::toy_task(modules[static_cast<std::size_t>(world.rank())]),
                    std::make_shared<test::ToyDataset>(96), {}, options);
    const auto end = trainer.run();
    EXPECT_EQ(end.status().code(), Code::kRefused);
    EXPECT_THAT(end.status().message(), testing::HasSubstr("smaller than its 1 parts"));
  });
}

/// Counts what it computes, as running means do.
struct Counting : ToyModule {
  torch::Tensor calls = register_buffer("calls", torch::zeros({}, torch::kFloat64));
};

TEST(Auto, ChoosesTheSameOnAllRanksAndKeepsTheValues) {
  // what the options say of the strategy does not count
  const TrainerOptions options = options_with({.kind = Strategy::Kind::kAuto, .stage = 1});
  const test::ToyDataset data(96);
  const std::vector modules{std::make_shared<Counting>(), std::make_shared<Counting>()};
  std::vector<TrainerOptions> chosen(2);
  std::atomic<int> calls = 0;
  run_replicas(2, [&](comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    Task task = test::toy_task(modules[rank]);
    task.forward = [&, rank](const torch::Tensor& x) {
      ++calls;
      modules[rank]->calls += 1;
      return modules[rank]->forward(x);
    };
    chosen[rank] = choose_strategy(world, task, data, options).take_or_throw();
  });
  EXPECT_GT(calls, 0);
  EXPECT_NE(chosen[0].strategy.kind, Strategy::Kind::kAuto);
  EXPECT_EQ(chosen[0].strategy, chosen[1].strategy);
  EXPECT_EQ(chosen[0].micro_batches, chosen[1].micro_batches);
  EXPECT_EQ(chosen[0].recompute, chosen[1].recompute);
  for (const auto& module : modules) {
    EXPECT_EQ(module->calls.item<double>(), 0);
    for (const torch::Tensor& p : module->parameters()) EXPECT_FALSE(p.grad().defined());
  }
}

}  // namespace
}  // namespace stormo::train
