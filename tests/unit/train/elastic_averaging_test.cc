// Elastic averaging on ranks that are threads: the recurrence of the paper, what the centre gains,
// how often ranks exchange, and what is refused.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer_run.h"

namespace stormo::train {
namespace {

using test::distance;
using testing::HasSubstr;

class ElasticAveraging : public test::TrainerRun {
 protected:
  ElasticAveraging() : TrainerRun("stormo_elastic_") {
    options.optimizer = {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4};
    exchange_every(1);
  }
  void exchange_every(int period) {
    options.strategy = {.kind = Strategy::Kind::kElasticAveraging, .period = period};
  }
  /// The exchanges of one worker with one shard.
  std::int64_t exchanges(const Outcome& out, std::size_t worker) {
    return out.end.staleness[worker].gradients;
  }
};

/// One parameter w and the loss sum(h w^2) / 2, whatever the data are.
struct Quadratic : torch::nn::Module {
  Quadratic(const torch::Tensor& start, const torch::Tensor& curvature)
      : w(register_parameter("w", start.clone())), h(curvature) {}
  torch::Tensor w, h;
};

Task task_of(const std::shared_ptr<Quadratic>& module) {
  Task task;
  task.module = module;
  task.forward = [module](const torch::Tensor&) { return module->w; };
  task.loss = [module](const torch::Tensor& output, const torch::Tensor&) {
    return (module->h * output * output).sum() / 2;
  };
  return task;
}

/// Two workers whose exchanges alternate: 0, 1, 0, 1, and so on.
class Alternating {
 public:
  void wait_for(Rank rank) const {
    while (turn_.load() != rank) std::this_thread::yield();
  }
  void pass() { turn_ = 1 - turn_; }

 private:
  std::atomic<int> turn_{0};
};

struct Trajectory {
  std::array<std::vector<torch::Tensor>, 2> x;  // by worker and step: after it
  torch::Tensor centre;                         // at the end
};

/// Gradients are those of curvature `h` for each worker.
Trajectory train_two(const std::array<torch::Tensor, 2>& h, const torch::Tensor& start,
                     TrainerOptions options) {
  Trajectory out;
  Alternating turns;
  auto group = comm::make_inproc_group(2).take_or_throw();
  const auto dataset = std::make_shared<test::ToyDataset>(8);
  options.global_batch = 2;
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const auto rank = static_cast<std::size_t>(r);
      const auto module = std::make_shared<Quadratic>(start, h[rank]);
      Trainer trainer(*group[rank], task_of(module), dataset, {}, options);
      trainer.on_action([&, r](const plan::Action& a) {
        if (a.kind == plan::ActionKind::kBackward) turns.wait_for(r);
        if (a.kind != plan::ActionKind::kUpdate) return;
        out.x[rank].push_back(module->w.detach().clone());
        turns.pass();
      });
      const auto end = trainer.run();
      EXPECT_TRUE(end.ok()) << end.status().to_string();
      if (r == 0) out.centre = module->w.detach().clone();
    });
  }
  for (std::thread& t : threads) t.join();
  return out;
}

using Matrix = std::array<std::array<double, 3>, 3>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out{};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      for (std::size_t k = 0; k < 3; ++k) out[i][j] += a[i][k] * b[k][j];
    }
  }
  return out;
}

/// A step of one worker maps (x_1, x_2, c): x <- x - a (x - c) - lr h x, c <- c + a (x - c), with
/// the x and c before it on the right (equation 2 and algorithm 1 of the paper).
Matrix step_of(std::size_t worker, double lr, double h, double a) {
  Matrix m{};
  for (std::size_t i = 0; i < 3; ++i) m[i][i] = 1;
  m[worker][worker] = 1 - a - lr * h;
  m[worker][2] = a;
  m[2][worker] = a;
  m[2][2] = 1 - a;
  return m;
}

TEST_F(ElasticAveraging, OfAQuadraticIsTheRecurrenceOfThePaper) {
  constexpr double kRate = 0.1, kMoving = 0.3;
  constexpr std::array<std::array<double, 3>, 2> kCurvature = {{{0.5, 2, 0}, {4, 1, 7}}};
  const torch::Tensor start = torch::tensor({1.0, -2.0, 3.0}, torch::kFloat64);
  const auto curvature = [&](std::size_t w) {
    return torch::tensor(std::vector<double>(kCurvature[w].begin(), kCurvature[w].end()),
                         torch::kFloat64);
  };
  options.optimizer = {.lr = kRate};
  options.elastic.moving_rate = kMoving;
  options.steps = 25;
  const Trajectory seen = train_two({curvature(0), curvature(1)}, start, options);
  for (std::size_t j = 0; j < 3; ++j) {
    const Matrix first = step_of(0, kRate, kCurvature[0][j], kMoving);
    const Matrix both = product(step_of(1, kRate, kCurvature[1][j], kMoving), first);
    Matrix power{};  // `both` to the number of steps before
    for (std::size_t i = 0; i < 3; ++i) power[i][i] = 1;
    const double begin = start[static_cast<std::int64_t>(j)].item<double>();
    const auto value = [begin](const Matrix& m, std::size_t row) {
      return (m[row][0] + m[row][1] + m[row][2]) * begin;
    };
    const auto element = [j](const torch::Tensor& t) {
      return t[static_cast<std::int64_t>(j)].item<double>();
    };
    for (std::size_t t = 0; t < 25; ++t) {
      EXPECT_NEAR(element(seen.x[0][t]), value(product(first, power), 0), 1e-10) << t;
      power = product(both, power);
      EXPECT_NEAR(element(seen.x[1][t]), value(power, 1), 1e-10) << t;
    }
    EXPECT_NEAR(element(seen.centre), value(power, 2), 1e-10);
  }
}

// With gradients of zero nothing but exchanges moves the values.
TEST_F(ElasticAveraging, WhatTheCentreGainsTheWorkersLose) {
  options.optimizer = {.lr = 0.1};
  options.elastic.moving_rate = 0.4;
  options.steps = 9;
  // worker 0 moves away first, by a curvature that its step 1 alone has
  const torch::Tensor start = torch::tensor({1.0, -2.0}, torch::kFloat64);
  const torch::Tensor pushed = torch::ones({2}, torch::kFloat64);
  const torch::Tensor none = torch::zeros({2}, torch::kFloat64);
  options.learning_rate = {.kind = LearningRateOptions::Kind::kStep, .step_size = 1, .gamma = 0};
  const Trajectory seen = train_two({pushed, none}, start, options);
  const torch::Tensor first = seen.x[0].front();
  EXPECT_GT((first - start).abs().min().item<double>(), 0.05);
  const torch::Tensor sum = seen.x[0].back() + seen.x[1].back() + seen.centre;
  EXPECT_LE((sum - (first + 2 * start)).abs().max().item<double>(), 1e-12);
  EXPECT_GT((seen.centre - start).abs().min().item<double>(), 0.01) << "the centre stays";
  EXPECT_GT((seen.x[1].back() - start).abs().min().item<double>(), 0.01);
}

TEST_F(ElasticAveraging, ExchangesInTheFirstStepOfEveryPeriod) {
  options.steps = 23;
  options.servers.count = 1;
  for (const auto& [period, expected] : {std::pair{1, 23}, {4, 6}, {8, 3}, {22, 2}, {23, 1}}) {
    exchange_every(period);
    for (const std::int64_t eval_every : {0, 5}) {  // where workers meet nothing more is exchanged
      options.eval_every = eval_every;
      const Outcome out = run(2);
      for (const std::size_t worker : {0, 1}) {
        EXPECT_EQ(exchanges(out, worker), expected) << period << ", " << eval_every;
      }
    }
  }
}

TEST_F(ElasticAveraging, StalenessIsOfTheOtherWorkersExchanges) {
  options.servers.count = 1;
  const Outcome one = run(1);
  ASSERT_EQ(one.end.staleness.size(), 1u);
  EXPECT_EQ(one.end.staleness[0].max, 0);
  const Outcome three = run(3);
  ASSERT_EQ(three.end.staleness.size(), 3u);
  std::int64_t most = 0;
  for (const auto& worker : three.end.staleness) most = std::max(most, worker.max);
  EXPECT_GT(most, 0);
}

/// The values of a module after each update, on one rank.
std::vector<test::Values> values_by_step(const TrainerOptions& options) {
  std::vector<test::Values> out;
  auto group = comm::make_inproc_group(1).take_or_throw();
  const auto module = test::make_toy_module(3);
  Trainer trainer(*group[0], test::toy_task(module), std::make_shared<test::ToyDataset>(96), {},
                  options);
  trainer.on_action([&](const plan::Action& a) {
    if (a.kind == plan::ActionKind::kUpdate) out.push_back(test::values_of(*module));
  });
  EXPECT_TRUE(trainer.run().ok());
  if (options.strategy.kind == Strategy::Kind::kElasticAveraging) {
    EXPECT_EQ(distance(test::values_of(*module), test::values_of(*test::make_toy_module(3))), 0)
        << "the centre has moved";
  }
  return out;
}

// The first exchange finds x = c, and there is no second one.
TEST_F(ElasticAveraging, OneWorkerThatIsNotDrawnIsTheSequentialRunBitForBit) {
  exchange_every(1000);
  const auto served = values_by_step(options);
  options.strategy = {.kind = Strategy::Kind::kOneDevice};
  const auto sequential = values_by_step(options);
  ASSERT_EQ(served.size(), 20u);
  ASSERT_EQ(sequential.size(), 20u);
  for (std::size_t i = 0; i < served.size(); ++i) {
    EXPECT_EQ(distance(served[i], sequential[i]), 0) << i;
  }
}

/// Its values after each update.
std::vector<torch::Tensor> train_alone(const torch::Tensor& h, const torch::Tensor& start,
                                       TrainerOptions options) {
  std::vector<torch::Tensor> out;
  auto group = comm::make_inproc_group(1).take_or_throw();
  options.strategy = {.kind = Strategy::Kind::kOneDevice};
  options.elastic = {};
  options.servers = {};
  const auto module = std::make_shared<Quadratic>(start, h);
  Trainer trainer(*group[0], task_of(module), std::make_shared<test::ToyDataset>(8), {}, options);
  trainer.on_action([&](const plan::Action& a) {
    if (a.kind == plan::ActionKind::kUpdate) out.push_back(module->w.detach().clone());
  });
  EXPECT_TRUE(trainer.run().ok());
  return out;
}

TEST_F(ElasticAveraging, AMovingRateOfZeroGivesIndependentRunsBitForBit) {
  const torch::Tensor start = torch::tensor({1.0, -2.0, 3.0}, torch::kFloat64);
  const std::array h = {torch::tensor({0.5, 2.0, 0.1}, torch::kFloat64),
                        torch::tensor({4.0, 1.0, 7.0}, torch::kFloat64)};
  options.elastic.moving_rate = 0;
  options.global_batch = 2;
  const Trajectory together = train_two(h, start, options);
  for (const std::size_t worker : {0, 1}) {
    const std::vector<torch::Tensor> alone = train_alone(h[worker], start, options);
    ASSERT_EQ(alone.size(), 20u);
    ASSERT_EQ(together.x[worker].size(), 20u);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(torch::equal(together.x[worker][i], alone[i])) << worker << ", " << i;
    }
  }
  EXPECT_TRUE(torch::equal(together.centre, start));
}

TEST_F(ElasticAveraging, TheCentreLearns) {
  options.steps = 120;
  options.eval_every = 40;
  exchange_every(4);
  for (const auto kind : {OptimizerOptions::Kind::kSgd, OptimizerOptions::Kind::kAdamW,
                          OptimizerOptions::Kind::kLamb}) {
    options.optimizer.kind = kind;
    options.optimizer.lr = kind == OptimizerOptions::Kind::kSgd ? 0.05 : 0.01;
    const Outcome out = run(3);
    EXPECT_EQ(out.end.samples, 120 * 12);
    ASSERT_EQ(out.evals.size(), 3u);
    EXPECT_LT(out.evals.back().loss, out.evals.front().loss);
  }
}

TEST_F(ElasticAveraging, SlicedParametersGiveTheSameBits) {
  options.servers.count = 3;
  const Outcome greedy = run(1);
  options.servers.placement = server::PlacementRule::kSliced;
  EXPECT_EQ(run(1).end.weights_hash, greedy.end.weights_hash);
}

// With one worker there is one order of exchanges.
TEST_F(ElasticAveraging, GoesOnAfterASaveAsIfThereHadBeenNone) {
  exchange_every(3);
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  const Outcome unbroken = run(1);
  for (const bool asynchronous : {false, true}) {
    options.eval_every = 5;
    options.verify_every = 7;
    options.overwrite = true;
    options.checkpoint = {.directory = folder, .every = 4, .asynchronous = asynchronous};
    EXPECT_EQ(run(1).end.weights_hash, unbroken.end.weights_hash) << asynchronous;
  }
}

TEST_F(ElasticAveraging, AResumedRunBeginsWithTheCentreOnAllWorkers) {
  options.checkpoint = {.directory = folder};
  const Outcome before = run(3);
  options.resume = true;
  options.steps = 21;
  accepted_changes = {"optimizer.lr"};
  options.optimizer.lr = 1e-300;  // the step changes nothing
  EXPECT_LE(distance(run(3).values, before.values), 1e-15);
}

TEST_F(ElasticAveraging, ItsCheckpointIsThatOfAnyStrategy) {
  options.checkpoint = {.directory = folder};
  (void)run(2);
  options.resume = true;
  options.steps = 30;
  accepted_changes = {"strategy"};
  options.strategy = {.kind = Strategy::Kind::kMirrored};
  EXPECT_EQ(run(2).end.steps, 30);
  options.steps = 40;
  exchange_every(4);
  EXPECT_EQ(run(2).end.steps, 40);
}

TEST_F(ElasticAveraging, RefusesWhatHasNoMeaning) {
  const auto refused = [this] { return try_run(2).status().message(); };
  options.strategy.parameters = Strategy::Parameters::kHostShared;
  EXPECT_THAT(refused(), HasSubstr("leave out parameters"));
  exchange_every(0);
  EXPECT_THAT(refused(), HasSubstr("give at least 1 worker, and a period"));
  exchange_every(1);
  options.gradients.bucket_bytes = 1024;
  EXPECT_THAT(refused(), HasSubstr("does not use strategy.bucket_bytes"));
  options.gradients.bucket_bytes = 0;
  options.servers.processes = 1;
  EXPECT_THAT(refused(), HasSubstr("give it a session"));
  options.servers.processes = 0;
  for (const double rate : {-0.1, 0.51, 1.1, std::nan("")}) {
    options.elastic.moving_rate = rate;
    EXPECT_THAT(refused(), HasSubstr("must be from 0 to 1 / workers, or -1 for 0.9 / workers"));
  }
  options.elastic.moving_rate = 0.6;
  EXPECT_EQ(refused(),
            "the moving rate of elastic averaging is 0.600000, 1.200000 for all 2 workers "
            "together, but must be from 0 to 1 / workers, or -1 for 0.9 / workers");
  options.elastic.moving_rate = 0.5;
  EXPECT_EQ(refused(), "");
}

}  // namespace
}  // namespace stormo::train
