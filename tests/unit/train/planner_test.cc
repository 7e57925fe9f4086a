// A program that leaves the choice of the strategy to the Trainer, and ranks that choose what
// travels.
#include <stormo/train/planner/choose.h>
#include <stormo/train/planner/traffic.h>

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

/// What two ranks choose, each with a module of its own.
std::vector<TrafficChoice> chosen_traffic(const TrainerOptions& options, const OpenKeys& open) {
  const test::ToyDataset data(96);
  const Modules modules = modules_of(2);
  std::vector<TrafficChoice> out(2);
  run_replicas(2, [&](comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const Task task = test::toy_task(modules[rank]);
    out[rank] = choose_traffic(world, task, data, options, open).take_or_throw();
  });
  for (const auto& module : modules) {
    EXPECT_EQ(distance(*module, *test::make_toy_module(3)), 0) << "values stay as they are";
  }
  return out;
}

TEST(Traffic, RanksChooseOneCodecOfAll) {
  const auto chosen = chosen_traffic(
      options_with({.kind = Strategy::Kind::kDdp, .parameters = Strategy::Parameters::kReplicated}),
      {.compression = true});
  const TrafficChoice& first = chosen[0];
  ASSERT_EQ(first.ways.size(), codec_rows().size());
  EXPECT_EQ(first.ways.front().codec.kind, Codec::kNone);
  ASSERT_TRUE(first.links);
  for (const TrafficWay& way : first.ways) {
    EXPECT_GT(way.price.alone, 0);
    EXPECT_GE(way.price.seconds, way.price.alone) << to_string(way.codec);
  }
  EXPECT_EQ(first.taken, taken_way(first.ways));
  EXPECT_EQ(chosen[1].taken, first.taken);
  EXPECT_EQ(chosen[1].links, first.links);
  for (std::size_t i = 0; i < first.ways.size(); ++i) {
    EXPECT_EQ(chosen[1].ways[i].price.seconds, first.ways[i].price.seconds);
  }
  EXPECT_THAT(why(first, {.compression = true}),
              testing::AllOf(testing::StartsWith(to_string(first.way().codec) + ", "),
                             testing::HasSubstr("in the host")));
}

TEST(Traffic, RanksChooseAPeriod) {
  TrainerOptions options = options_with({.kind = Strategy::Kind::kParameterAveraging});
  const auto chosen = chosen_traffic(options, {.period = true});
  std::vector<int> periods;
  for (const TrafficWay& way : chosen[0].ways) periods.push_back(way.period);
  EXPECT_THAT(periods, testing::ElementsAre(1, 2, 4, 8, 16, 32, 64, 128, 256, 512));
  EXPECT_EQ(chosen[0].taken, chosen[1].taken);
  for (std::size_t i = 1; i < chosen[0].ways.size(); ++i) {
    EXPECT_LT(chosen[0].ways[i].price.seconds, chosen[0].ways[i - 1].price.seconds);
  }
  EXPECT_EQ(with(options, chosen[0].way()).strategy.period, chosen[0].way().period);
  // each of them has a step of its own
  options.strategy.outer.kind = parallel::OuterOptimizer::Kind::kNesterov;
  options.strategy.streaming.fragments = 3;
  const auto streamed = chosen_traffic(options, {.period = true});
  EXPECT_EQ(streamed[0].ways.front().period, 4);
}

TEST(Traffic, WhatChangesNothingIsNoChoice) {
  const Task task = test::toy_task(test::make_toy_module(3));
  const auto codecs = [&](const TrainerOptions& options, const std::vector<int>& hosts) {
    return traffic_ways(options, task, hosts, {.compression = true});
  };
  const TrainerOptions ddp = options_with({.kind = Strategy::Kind::kDdp});
  EXPECT_EQ(codecs(ddp, {1}).take_or_throw().size(), 1u) << "one rank";
  EXPECT_EQ(codecs(ddp, {2}).take_or_throw().size(), 1u) << "ranks of a host share a copy";
  EXPECT_EQ(codecs(ddp, {1, 1}).take_or_throw().size(), codec_rows().size());
  const auto fsdp = codecs(options_with({.kind = Strategy::Kind::kFsdp}), {1, 1}).take_or_throw();
  EXPECT_EQ(fsdp.size(), codec_rows().size() - 1) << "but for powersgd";
  // an average of parameters is not rounded
  EXPECT_THAT(codecs(options_with({.kind = Strategy::Kind::kParameterAveraging}), {1, 1})
                  .status()
                  .message(),
              testing::HasSubstr("sends parameters, which a codec would change"));
  const auto one = traffic_ways(options_with({.kind = Strategy::Kind::kParameterAveraging}), task,
                                {1}, {.period = true})
                       .take_or_throw();
  EXPECT_EQ(one.size(), 1u);
}

}  // namespace
}  // namespace stormo::train
