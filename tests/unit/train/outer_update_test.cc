// DiLoCo and SlowMo: averages of parameters that an outer optimizer takes as gradients. What they
// must be equal to, and what a resumed run goes on with.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/project.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/store/averaged_store.h>

#include "tests/unit/comm/ranks.h"
#include "trainer_run.h"

namespace stormo::train {
namespace {

using Rule = parallel::OuterOptimizer::Kind;
using test::distance;
using testing::HasSubstr;

class OuterUpdate : public test::TrainerRun {
 protected:
  OuterUpdate() : TrainerRun("stormo_outer_") {
    options.optimizer = {.lr = 0.05, .momentum = 0};
    options.strategy = {.kind = Strategy::Kind::kParameterAveraging, .period = 4};
  }
  void diloco(int period, double lr = 0.7, double momentum = 0.9) {
    options.strategy.period = period;
    options.strategy.outer = {Rule::kNesterov, lr, momentum};
  }
  void slowmo(int period, double lr, double momentum) {
    options.strategy.period = period;
    options.strategy.outer = {Rule::kSlowMo, lr, momentum};
  }
  /// With gradients averaged in every step.
  Outcome synchronous(int ranks, const OptimizerOptions& optimizer) {
    const TrainerOptions before = options;
    options.strategy = {.kind = Strategy::Kind::kMirrored,
                        .parameters = Strategy::Parameters::kReplicated};
    options.optimizer = optimizer;
    options.averaging = {};
    Outcome out = run(ranks);
    options = before;
    return out;
  }
};

TEST_F(OuterUpdate, WithRateOneAndNoMomentumIsTheAverageBitForBit) {
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  options.strategy.average_state = Strategy::AverageState::kNo;
  const Outcome plain = run(3);
  diloco(4, 1, 0);
  EXPECT_EQ(run(3).end.weights_hash, plain.end.weights_hash);
  slowmo(4, 1, 0);
  EXPECT_EQ(run(3).end.weights_hash, plain.end.weights_hash);
  diloco(4);
  EXPECT_GT(distance(run(3).values, plain.values), 1e-3);
}

// SGD with an inner rate r and H = 1 has the outer gradient r * g: it is Nesterov SGD of rate
// r * outer_lr, whatever the momentum.
TEST_F(OuterUpdate, OfEveryStepIsSgdWithNesterovMomentum) {
  options.global_batch = 13;
  diloco(1);
  const Outcome reference = synchronous(3, {.lr = 0.05 * 0.7, .momentum = 0.9, .nesterov = true});
  EXPECT_LE(distance(run(3).values, reference.values), 1e-12);
}

// The momentum of SlowMo is one of gradients, so it is that of SGD also where the rate changes.
TEST_F(OuterUpdate, SlowMoOfEveryStepIsSgdWithMomentumUnderAnyLearningRate) {
  options.learning_rate = {.kind = LearningRateOptions::Kind::kCosine, .warmup_steps = 3};
  slowmo(1, 1, 0.6);
  EXPECT_LE(distance(run(3).values, synchronous(3, {.lr = 0.05, .momentum = 0.6}).values), 1e-12);
}

// Post-local SGD: the first steps are synchronous training, whose averages are no outer gradients.
TEST_F(OuterUpdate, BeginsAfterTheWarmUp) {
  options.optimizer.momentum = 0.9;
  options.steps = 14;
  options.averaging.warmup_steps = 14;
  diloco(4);
  EXPECT_LE(distance(run(2).values, synchronous(2, options.optimizer).values), 1e-12);
  options.averaging.warmup_steps = 6;
  std::string done;
  std::mutex telling;
  on_action = [&](Rank rank, const plan::Action& a) {
    const std::lock_guard lock(telling);
    if (rank != 0) return;
    if (row_of(a.kind).averages()) done += "a";
    if (row_of(a.kind).outer_updates()) done += "o";
  };
  run(2);
  EXPECT_EQ(done, "aaaaaaaoaoao");  // after steps 1 to 6, 8, 12 and 14
}

TEST_F(OuterUpdate, ResumedRunsEndInTheSameBits) {
  options.learning_rate = {
      .kind = LearningRateOptions::Kind::kStep, .warmup_steps = 3, .step_size = 5, .gamma = 0.5};
  options.checkpoint = {.directory = folder, .every = 6};
  for (const auto kind : {OptimizerOptions::Kind::kAdamW, OptimizerOptions::Kind::kSgd}) {
    for (const bool slow : {false, true}) {
      options.optimizer = {.kind = kind, .lr = 0.01};
      slow ? slowmo(4, 1, 0.6) : diloco(4);
      expect_bits_of_whole_run(3, {6, 12}, slow ? "slowmo" : "diloco");
    }
  }
}

// A checkpoint has one state of the optimizer, and the outer momentum: other ranks go on with them.
TEST_F(OuterUpdate, GoesOnWithOtherRanksAndInOtherTraining) {
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  options.checkpoint = {.directory = folder, .every = 8};
  options.overwrite = true;
  const Strategy synchronous = {.kind = Strategy::Kind::kMirrored,
                                .parameters = Strategy::Parameters::kReplicated};
  diloco(4);
  const Strategy outer = options.strategy;
  accepted_changes = {"strategy"};
  options.steps = 8;
  run(3);
  options.steps = 16;
  EXPECT_TRUE(std::isfinite(resumed(2).end.train_loss));
  options.steps = 24;
  options.strategy = synchronous;  // which leaves the momentum out
  EXPECT_TRUE(std::isfinite(resumed(2).end.train_loss));
  options.steps = 32;
  options.strategy = outer;  // which begins it anew
  EXPECT_TRUE(std::isfinite(resumed(4).end.train_loss));
}

// On replicas that go on from a checkpoint with the same samples each, the number of ranks cannot
// be seen: so what the outer optimizer keeps is taken over.
TEST_F(OuterUpdate, KeepsItsMomentumOnAnotherNumberOfRanks) {
  options.checkpoint = {.directory = folder};
  options.optimizer.momentum = 0.9;
  diloco(1);
  options.steps = 20;
  const Outcome whole = run(2);
  options.overwrite = true;
  options.steps = 10;
  run(2);
  options.steps = 20;
  EXPECT_LE(distance(resumed(4).values, whole.values), 1e-12);
}

/// One rank of an average of quadratics a/2 |x - b|^2, each with a b of its own.
class Quadratic {
 public:
  Quadratic(comm::Communicator& world, const plan::StepPlan& plan, const TrainerOptions& options)
      : options_(options), groups_(world, plan), module_(std::make_shared<torch::nn::Module>()) {
    x_ = module_->register_parameter("x", torch::full({5}, 3.0, torch::kFloat64));
    store_ = make_store(plan, groups_, module_, options);
    store_->set_plan(plan);
    target_ = torch::arange(5, torch::kFloat64) * (1.0 + world.rank());
  }
  void step(double a) {
    x_.mutable_grad() = a * (x_.detach() - target_);
    throw_if_error(store_->update({0, 1}, {.lr = options_.optimizer.lr}));
  }
  void perform(const plan::Action& action) { throw_if_error(store_->perform(action, 1)); }
  torch::Tensor x() const { return x_.detach().clone(); }

 private:
  const TrainerOptions& options_;
  AxisGroups groups_;
  std::shared_ptr<torch::nn::Module> module_;
  torch::Tensor x_, target_;
  std::unique_ptr<ParameterStore> store_;
};

// After H steps x_r = b_r + q (x - b_r) with q = (1 - lr a)^H. So with e = x - mean b the outer
// gradient is (1 - q) e, and e and the momentum v follow a linear recurrence.
TEST(DiLoCo, OnQuadraticsFollowsTheClosedRecurrence) {
  constexpr int kRanks = 3, kPeriod = 7, kRounds = 50;
  constexpr double kCurvature = 0.8, kInner = 0.1, kOuter = 0.7, kMomentum = 0.9;
  TrainerOptions options;
  options.optimizer = {.lr = kInner};
  options.strategy = {.kind = Strategy::Kind::kParameterAveraging,
                      .period = kPeriod,
                      .outer = {Rule::kNesterov, kOuter, kMomentum}};
  plan::ModelShape shape{.segments = {{.name = "x", .parameters = {}, .borrowed = {}}}};
  shape.segments[0].parameters.push_back({.name = "x", .elements = 5, .dtype = DType::kFloat64});
  const plan::StepPlan plan =
      parallel::plan_for(options.strategy, shape, {.ranks_per_host = {kRanks}}).take_or_throw();
  const double q = std::pow(1 - kInner * kCurvature, kPeriod);
  const torch::Tensor mean = torch::arange(5, torch::kFloat64) * 2;
  comm::on_ranks(kRanks, [&](comm::Communicator& world) {
    Quadratic mine(world, plan, options);
    torch::Tensor e = 3.0 - mean, v = torch::zeros_like(mean);
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kPeriod; ++i) mine.step(kCurvature);
      for (const plan::Action& a : plan.actions) {
        const plan::ActionRow& row = row_of(a.kind);
        if (row.averages() || row.outer_updates()) mine.perform(a);
      }
      v = (1 - q) * e + kMomentum * v;
      e = e - kOuter * ((1 - q) * e + kMomentum * v);
      EXPECT_LE((mine.x() - mean - e).abs().max().item<double>(), 1e-12) << "round " << round;
    }
    EXPECT_LT(e.abs().max().item<double>(), 1.0) << "it converges";
  });
}

}  // namespace
}  // namespace stormo::train
