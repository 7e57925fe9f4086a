// Training in virtual time with the real model: what it must be equal to, for workers that have
// copies of their own.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/train/simulate/simulated_training.h>

#include "trainer_run.h"

namespace stormo::train {
namespace {

using protocol::VirtualCluster;
using test::distance;
using test::make_toy_module;
using test::toy_task;
using test::Values;
using test::values_of;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Policy = protocol::PolicyOptions::Kind;
using Kind = Strategy::Kind;

class SimulatedRun : public test::TrainerRun {
 protected:
  SimulatedRun() : TrainerRun("stormo_simulated_") { options.optimizer = {.lr = 0.05}; }

  struct Simulated {
    SimulatedTraining training;
    Values values;
  };
  Result<Simulated> try_simulate(VirtualCluster cluster) const {
    cluster.steps = options.steps;
    const auto module = make_toy_module(3);
    STORMO_ASSIGN_OR_RETURN(SimulatedTraining training,
                            simulate_training(toy_task(module), *dataset, options, cluster));
    return Simulated{std::move(training), values_of(*module)};
  }
  Simulated simulate(const VirtualCluster& cluster) const {
    return try_simulate(cluster).take_or_throw();
  }
  /// Mean of the last third of the steps of all workers.
  static double last_loss(const Simulated& simulated) {
    const auto& steps = simulated.training.steps;
    double sum = 0;
    const std::size_t first = steps.size() * 2 / 3;
    for (std::size_t i = first; i < steps.size(); ++i) sum += steps[i].loss;
    return sum / static_cast<double>(steps.size() - first);
  }
  void downpour(int fetch, int push) {
    options.strategy = {.kind = Kind::kParameterServer, .exchange_periods = {fetch, push}};
  }
  void average(int period) {
    options.strategy = {.kind = Kind::kParameterAveraging, .period = period};
  }
  void exchange(int period) {
    options.strategy = {.kind = Kind::kElasticAveraging, .period = period};
  }
};

// Dean et al. have n_fetch = n_push = 1, and Adagrad at the servers.
TEST_F(SimulatedRun, DownpourOfOneWorkerIsTheRunAndSequentialAdagrad) {
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdagrad, .lr = 0.05};
  for (const auto& [fetch, push] : {std::pair{1, 1}, {5, 1}, {4, 4}, {6, 3}, {1, 7}}) {
    downpour(fetch, push);
    options.clip_norm = fetch == 6 ? 0.3 : 0;
    const Values simulated = simulate({.workers = 1}).values;
    EXPECT_LE(distance(simulated, run(1).values), 1e-12) << fetch << ", " << push;
    if (fetch * push > 1) continue;
    options.strategy = {.kind = Kind::kOneDevice};
    EXPECT_LE(distance(simulated, run(1).values), 1e-12);
  }
}

TEST_F(SimulatedRun, DownpourWithSgdOfOneWorkerIsSequentialHoweverSeldomItPulls) {
  options.strategy = {.kind = Kind::kOneDevice};
  const Outcome sequential = run(1);
  for (const auto& [fetch, push] : {std::pair{20, 1}, {8, 4}, {6, 2}}) {
    downpour(fetch, push);
    for (const bool pooled : {false, true}) {
      EXPECT_LE(distance(simulate({.workers = 1, .pooled = pooled}).values, sequential.values),
                1e-12)
          << fetch << ", " << push;
    }
  }
}

TEST_F(SimulatedRun, DownpourPushesAndPullsAsOftenAsThePaperSays) {
  downpour(3, 5);
  options.servers.count = 1;
  const protocol::VirtualOutcome out = simulate({.workers = 3}).training.outcome;
  for (const protocol::WorkerState& worker : out.servers[0].workers) {
    EXPECT_EQ(worker.reads, 1u + 19 / 3);
    EXPECT_EQ(worker.pushes, 1u + 19 / 5);
  }
}

// 7 steps of the first worker are 4 pushes of 2 steps.
TEST_F(SimulatedRun, OthersBeginAfterTheWarmStart) {
  downpour(2, 2);
  options.servers.policy.warm_start = 7;
  const auto steps = simulate({.workers = 3}).training.steps;
  const auto other = std::ranges::find_if(steps, [](const auto& s) { return s.worker != 0; });
  const auto alone =
      std::count_if(steps.begin(), other, [](const auto& s) { return s.worker == 0; });
  // 7 steps, one to the push after them, and one while the others do their first
  EXPECT_THAT(alone, AnyOf(8, 9));
}

// 13 samples on 3 workers are 4, 4 and 5; the last batch of an epoch has 5.
TEST_F(SimulatedRun, AveragingIsTheRunOfThatManyRanks) {
  options.global_batch = 13;
  options.steps = 11;
  for (const auto& [period, kind] : {std::pair{1, OptimizerOptions::Kind::kSgd},
                                     {4, OptimizerOptions::Kind::kSgd},
                                     {4, OptimizerOptions::Kind::kAdamW}}) {
    average(period);
    options.optimizer = {.kind = kind, .lr = 0.01, .momentum = 0.9};
    const Simulated simulated = simulate({.workers = 3, .jitter = 0.5});
    EXPECT_LE(distance(simulated.values, run(3).values), 1e-12) << "period " << period;
    EXPECT_EQ(simulated.training.outcome.servers[0].version, 1u + 10 / period);
  }
}

TEST_F(SimulatedRun, AveragingOfEveryStepWithSgdIsTheRunWithTheUnionOfBatches) {
  options.global_batch = 13;
  options.steps = 9;
  for (const double momentum : {0.0, 0.9}) {
    options.optimizer.momentum = momentum;
    average(1);
    const Values averaged = simulate({.workers = 4}).values;
    options.strategy = {.kind = Kind::kOneDevice};
    EXPECT_LE(distance(averaged, run(1).values), 1e-12) << "momentum " << momentum;
  }
}

TEST_F(SimulatedRun, ElasticAveragingOfOneWorkerIsTheRun) {
  for (const int period : {1, 3}) {
    exchange(period);
    options.optimizer = {.lr = 0.05, .momentum = 0.9};
    const Simulated simulated = simulate({.workers = 1});
    EXPECT_LE(distance(simulated.values, run(1).values), 1e-12) << "period " << period;
    EXPECT_EQ(simulated.training.outcome.servers[0].version, 1u + 19 / period);
  }
}

/// One parameter w and the loss sum(h w^2) / 2, whatever the data are.
struct Quadratic : torch::nn::Module {
  explicit Quadratic(double h) : w(register_parameter("w", torch::ones({1}, torch::kFloat64))) {
    curvature = h;
  }
  torch::Tensor w;
  double curvature = 0;
};

// Both workers compute at the same time, and exchange one after the other. With a = alpha, b = lr h
// and the values before on the right, worker i makes x_i <- x_i - a (x_i - c) - b x_i and c <- c +
// a (x_i - c): equation 2 of the paper.
TEST_F(SimulatedRun, ElasticAveragingOfAQuadraticIsTheRecurrenceOfThePaper) {
  constexpr double kMoving = 0.3, kRate = 0.1, kCurvature = 2.5;
  exchange(3);
  options.steps = 25;
  options.optimizer.lr = kRate;
  options.elastic.moving_rate = kMoving;
  const auto module = std::make_shared<Quadratic>(kCurvature);
  Task task;
  task.module = module;
  task.forward = [module](const torch::Tensor&) { return module->w; };
  task.loss = [](const torch::Tensor& w, const torch::Tensor&) {
    return kCurvature * (w * w).sum() / 2;
  };
  const VirtualCluster cluster{.workers = 2, .steps = 25, .jitter = 0};
  throw_if_error(simulate_training(task, *dataset, options, cluster).status());
  std::array<double, 2> x = {1, 1};
  double centre = 1;
  for (int step = 0; step < 25; ++step) {
    for (double& own : x) {
      const double gradient = kCurvature * own;
      const double moved = step % 3 == 0 ? kMoving * (own - centre) : 0;
      own -= moved + kRate * gradient;
      centre += moved;
    }
  }
  EXPECT_NEAR(module->w.item<double>(), centre, 1e-12);
  EXPECT_LT(centre, 0.5) << "the centre has hardly moved";
}

TEST_F(SimulatedRun, TheSameSeedGivesTheSameBits) {
  options.steps = 9;
  const VirtualCluster cluster{.workers = 3, .jitter = 0.5, .seed = 5};
  const auto repeats = [&](bool has_order) {
    const Values first = simulate(cluster).values;
    EXPECT_EQ(distance(simulate(cluster).values, first), 0);
    VirtualCluster other = cluster;
    other.seed = 6;
    EXPECT_EQ(distance(simulate(other).values, first) > 0, has_order);
  };
  downpour(4, 2);
  repeats(true);
  exchange(2);
  repeats(true);
  average(4);
  repeats(false);  // whoever comes first: an average waits for all
}

// The time at which a fast worker has ended.
TEST_F(SimulatedRun, AStragglerDelaysAveragesButNotDownpourNorExchanges) {
  options.steps = 12;
  const auto end_of_first = [this](double slowness) {
    VirtualCluster cluster{.workers = 3};
    cluster.slowness = {1, 1, slowness};
    Duration last{};
    for (const auto& step : simulate(cluster).training.steps) {
      if (step.worker == 0) last = std::max(last, step.at);
    }
    return last;
  };
  downpour(4, 4);
  EXPECT_EQ(end_of_first(10), end_of_first(1));
  exchange(4);
  EXPECT_EQ(end_of_first(10), end_of_first(1));
  average(4);
  EXPECT_GT(end_of_first(10), 6 * end_of_first(1));
}

TEST_F(SimulatedRun, ALostRankEndsARunWithAveragesOnly) {
  VirtualCluster cluster{.workers = 3};
  cluster.crashes = {{.worker = 1, .at = std::chrono::milliseconds(105)}};
  average(4);
  const protocol::VirtualOutcome ended = simulate(cluster).training.outcome;
  EXPECT_EQ(ended.lost, "worker 1");
  EXPECT_EQ(ended.time, std::chrono::milliseconds(105));
  EXPECT_LE(ended.steps[0], 11);
  exchange(4);
  const protocol::VirtualOutcome whole = simulate(cluster).training.outcome;
  EXPECT_EQ(whole.lost, "");
  EXPECT_EQ(whole.steps[0], 20);
  EXPECT_LE(whole.steps[1], 11);
}

// Dean et al. 2012: 8 replicas with pulls and pushes now and then, of which one is lost, and
// Adagrad at the servers: the others reach the loss that all would have reached.
TEST_F(SimulatedRun, DownpourReachesItsLossWithoutALostWorker) {
  options.steps = 100;
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdagrad, .lr = 0.1};
  for (const auto& [fetch, push] : {std::pair{1, 1}, {4, 4}, {6, 3}}) {
    downpour(fetch, push);
    VirtualCluster cluster{.workers = 8};
    const Simulated whole = simulate(cluster);
    cluster.crashes = {{.worker = 3, .at = std::chrono::milliseconds(155)}};
    const Simulated without = simulate(cluster);
    const protocol::VirtualOutcome& outcome = without.training.outcome;
    EXPECT_NEAR(static_cast<double>(outcome.steps[3]), 15, 3);
    EXPECT_EQ(outcome.steps[4], options.steps);
    EXPECT_GT(distance(without.values, whole.values), 0) << "it had an effect";
    const double first = without.training.steps.front().loss;
    EXPECT_NEAR(last_loss(without), last_loss(whole), 0.1 * first) << fetch << ", " << push;
    EXPECT_LT(last_loss(without), 0.5 * first) << fetch << ", " << push;
  }
}

TEST_F(SimulatedRun, LossesChangeNothingButTheOrder) {
  options.steps = 12;
  options.servers = {.policy = {.kind = Policy::kSync}, .count = 3};
  options.strategy = {.kind = Kind::kParameterServer};
  VirtualCluster lossy{.workers = 3, .loss = 0.1, .timeout = std::chrono::milliseconds(5)};
  VirtualCluster crash = lossy;
  crash.server_crashes = {{.server = 1, .at = std::chrono::milliseconds(107)}};
  crash.backups = true;
  const auto differs_by = [this](const VirtualCluster& cluster) {
    const Simulated out = simulate(cluster), plain = simulate({.workers = cluster.workers});
    EXPECT_EQ(out.training.steps.size(), plain.training.steps.size());
    for (std::size_t s = 0; s < out.training.outcome.servers.size(); ++s) {
      EXPECT_EQ(out.training.outcome.servers[s].version, plain.training.outcome.servers[s].version);
    }
    EXPECT_NEAR(last_loss(out), last_loss(plain), 0.02);
    return distance(out.values, plain.values);
  };
  EXPECT_LE(differs_by(lossy), 1e-12);
  EXPECT_LE(differs_by(crash), 1e-12);
  average(4);
  EXPECT_LE(differs_by(lossy), 1e-12);
  options.servers.policy.kind = Policy::kAsync;
  downpour(1, 1);
  const double by = differs_by(crash);
  EXPECT_GT(by, 0);
  EXPECT_LT(by, 0.1);
  // one worker has one order
  for (VirtualCluster* cluster : {&lossy, &crash}) cluster->workers = 1;
  downpour(4, 2);
  EXPECT_LE(differs_by(crash), 1e-12);
  exchange(2);
  EXPECT_LE(differs_by(crash), 1e-12);
  // a push that comes again when its worker has begun the next sum
  downpour(6, 2);
  using std::chrono::milliseconds;
  EXPECT_LE(
      differs_by(
          {.workers = 1, .latency = milliseconds(20), .loss = 0.05, .timeout = milliseconds(30)}),
      1e-12);
}

TEST_F(SimulatedRun, LearnsWithAPoolAndWithWorkersOfAllKinds) {
  const std::vector<std::pair<std::string, Strategy>> ways = {
      {"downpour", {.kind = Kind::kParameterServer, .exchange_periods = {2, 2}}},
      {"averaging", {.kind = Kind::kParameterAveraging, .period = 4}},
      {"elastic", {.kind = Kind::kElasticAveraging, .period = 2}}};
  for (const auto& [name, strategy] : ways) {
    options.strategy = strategy;
    VirtualCluster cluster{.workers = 4, .pooled = true};
    cluster.slowness = {1, 1, 1, 6};
    const SimulatedTraining out = simulate(cluster).training;
    std::int64_t samples = 0;
    for (const SimulatedTraining::Step& step : out.steps) samples += step.samples;
    EXPECT_EQ(samples, 20 * 12) << name;
    EXPECT_LT(out.steps.back().loss, out.steps.front().loss) << name;
  }
}

TEST_F(SimulatedRun, RefusesWhatItCannotSimulate) {
  const auto refused = [this] { return try_simulate({.workers = 2}).status().message(); };
  average(4);
  options.averaging.max_distance = 1;
  EXPECT_THAT(refused(), HasSubstr("with a fixed period"));
  options.averaging.max_distance = 0;
  options.strategy.outer.kind = parallel::OuterOptimizer::Kind::kNesterov;
  EXPECT_THAT(refused(), HasSubstr("plain averages; leave out"));
  exchange(4);
  options.elastic.moving_rate = 0.7;
  EXPECT_THAT(refused(), HasSubstr("the moving rate of elastic averaging"));
  downpour(4, 1);
  options.servers.policy.kind = Policy::kSync;
  EXPECT_THAT(refused(), HasSubstr("need a read before each push"));
}

}  // namespace
}  // namespace stormo::train
