// 1-bit Adam: the bits of a sequential program, v that stays as it is, what steps send before and
// after, and runs that go on.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/codec/codec.h>
#include <stormo/train/estimate/step_sizes.h>
#include <stormo/train/optimizer/frozen_adam.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/reduction/gradient_reducer.h>
#include <stormo/train/step/variance_freeze.h>

#include "predicted_cost.h"
#include "trainer_run.h"

namespace stormo::train {
namespace {

using test::PlanRun;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using torch::Tensor;
using Kind = OptimizerOptions::Kind;

constexpr OptimizerOptions kAdamW{.kind = Kind::kAdamW, .lr = 0.01, .weight_decay = 0.1};

/// One number, by the formulas.
struct Formula {
  double w = 0, m = 0, v = 0;
  int updates = 0;

  void step(const OptimizerOptions& o, double g, int freeze_step) {
    if (o.kind == Kind::kAdam) g += o.weight_decay * w;
    if (o.kind == Kind::kAdamW) w -= o.lr * o.weight_decay * w;
    m = o.beta1 * m + (1 - o.beta1) * g;
    if (updates < freeze_step) {
      ++updates;
      v = o.beta2 * v + (1 - o.beta2) * g * g;
    }
    const double root = std::sqrt(v / (1 - std::pow(o.beta2, updates))) + o.epsilon;
    w -= o.lr * m / (1 - std::pow(o.beta1, updates)) / root;
  }
};

TEST(FrozenAdam, IsAdamWhoseMeanOfSquaresStays) {
  constexpr int kFreezeStep = 5;
  for (const Kind kind : {Kind::kAdam, Kind::kAdamW}) {
    OptimizerOptions options = kAdamW;
    options.kind = kind;
    const test::Seeded seeded(4);
    const Tensor p = torch::randn({7, 3}, torch::kFloat64).t();  // not contiguous
    std::vector<Formula> formulas;
    for (std::int64_t i = 0; i < p.numel(); ++i) {
      formulas.push_back({.w = p.flatten()[i].item<double>()});
    }
    FusedOptimizer optimizer(options, {{.name = "w", .tensor = p}});
    FrozenAdam frozen(optimizer, kFreezeStep);
    Tensor v;
    for (int step = 1; step <= 12; ++step) {
      const Tensor g = torch::randn({3, 7}, torch::kFloat64);
      for (std::size_t i = 0; i < formulas.size(); ++i) {
        const double one = g.flatten()[static_cast<std::int64_t>(i)].item<double>();
        formulas[i].step(options, one, kFreezeStep);
      }
      p.mutable_grad() = g.clone();
      frozen.prepare_gradients(0, 1);
      throw_if_error(frozen.step({.lr = options.lr}, 0, 1));
      for (std::size_t i = 0; i < formulas.size(); ++i) {
        EXPECT_NEAR(p.flatten()[static_cast<std::int64_t>(i)].item<double>(), formulas[i].w, 1e-12)
            << "step " << step;
      }
      const Tensor now = optimizer.values().slots[1][0];
      if (step == kFreezeStep) v = now.clone();
      if (step > kFreezeStep) {
        EXPECT_TRUE(now.equal(v)) << "step " << step;
      }
      EXPECT_EQ(optimizer.steps()[0], std::min(step, kFreezeStep));
    }
  }
}

TEST(FrozenAdam, AParameterWithoutAGradientGoesOnWithItsMomentum) {
  const Tensor p = torch::ones({2}, torch::kFloat64), never = torch::ones({2}, torch::kFloat64);
  FusedOptimizer optimizer({.kind = Kind::kAdam, .lr = 0.01},
                           {{.name = "w", .tensor = p}, {.name = "never", .tensor = never}});
  FrozenAdam frozen(optimizer, 1);
  Formula formula{.w = 1};
  for (int step = 1; step <= 3; ++step) {
    p.mutable_grad() = step == 1 ? torch::full({2}, 0.5, torch::kFloat64) : Tensor();
    formula.step({.kind = Kind::kAdam, .lr = 0.01}, step == 1 ? 0.5 : 0, 1);
    frozen.prepare_gradients(0, 2);
    throw_if_error(frozen.step({.lr = 0.01}, 0, 2));
    EXPECT_NEAR(p[1].item<double>(), formula.w, 1e-12) << step;
    EXPECT_EQ(never[0].item<double>(), 1);
  }
}

TEST(FrozenAdam, TakesAdamOf32Bits) {
  FusedOptimizer sgd({.lr = 0.1}, {{.name = "w", .tensor = torch::ones({2})}});
  EXPECT_THROW(FrozenAdam(sgd, 1), Error);
  FusedOptimizer half(kAdamW, {{.name = "w", .tensor = torch::ones({2}, torch::kBFloat16)}});
  EXPECT_THROW(FrozenAdam(half, 1), Error);
}

/// The sums of ranks in the codec `sign`, one after the other in one process.
class SequentialSum {
 public:
  SequentialSum(int ranks, std::int64_t count)
      : parts_(encoded_parts(row(), 1, count, ranks)), lost_of_sums_(torch::zeros({count})) {
    for (int r = 0; r < ranks; ++r) lost_.push_back(torch::zeros({count}));
  }

  Tensor of(const std::vector<Tensor>& terms) {
    for (std::size_t r = 0; r < terms.size(); ++r) {
      lost_[r].add_(terms[r]);
      lost_of_sums_.add_(sent(lost_[r]));
    }
    return sent(lost_of_sums_);
  }

 private:
  static const CodecRow& row() { return row_of(Codec::kSign); }
  /// What arrives of the numbers, which become what is lost of them.
  Tensor sent(const Tensor& numbers) const {
    Tensor out = torch::zeros_like(numbers);
    for (std::int64_t first = 0; first < numbers.numel(); first += parts_.numbers) {
      const auto count =
          static_cast<std::size_t>(std::min(parts_.numbers, numbers.numel() - first));
      std::vector<std::byte> code(static_cast<std::size_t>(parts_.bytes));
      row().encode({numbers.mutable_data_ptr<float>() + first, count}, code.data(), {});
      row().decode_add(code.data(), {out.mutable_data_ptr<float>() + first, count}, {});
    }
    return out;
  }

  EncodedParts parts_;
  std::vector<Tensor> lost_;
  Tensor lost_of_sums_;
};

constexpr std::int64_t kNumbers = 2500;
constexpr int kSteps = 12, kFreezeStep = 4;

/// Of a rank in a step until the freeze: sums of these are exact in any order. Some numbers have
/// none.
Tensor early_gradient(int rank, int step) {
  const test::Seeded seeded(static_cast<std::uint64_t>(100 * rank + step));
  Tensor g = torch::randint(-8, 9, {kNumbers}).to(torch::kFloat32).div_(8);
  g.narrow(0, 17, 40).zero_();
  return g;
}
/// Behind it: of a quadratic of this rank.
Tensor late_gradient(int rank, const Tensor& w) {
  const test::Seeded seeded(static_cast<std::uint64_t>(rank));
  return w.detach() - torch::randn({kNumbers});
}

struct Sequential {
  Tensor w, m, v;
};
Sequential sequential_program(int ranks) {
  const OptimizerOptions& o = kAdamW;
  Sequential s{.w = torch::ones({kNumbers})};
  FusedOptimizer optimizer(o, {{.name = "w", .tensor = s.w}});
  for (int step = 1; step <= kFreezeStep; ++step) {
    Tensor sum = torch::zeros({kNumbers});
    for (int r = 0; r < ranks; ++r) sum += early_gradient(r, step);
    s.w.mutable_grad() = sum / ranks;
    throw_if_error(optimizer.step(o.lr));
  }
  s.m = optimizer.values().slots[0][0];
  s.v = optimizer.values().slots[1][0];
  const Tensor root = s.v.div(1 - std::pow(o.beta2, kFreezeStep)).sqrt().add(o.epsilon);
  const Tensor has_squares = s.v != 0;
  SequentialSum sum(ranks, kNumbers);
  for (int step = kFreezeStep + 1; step <= kSteps; ++step) {
    std::vector<Tensor> terms;
    for (int r = 0; r < ranks; ++r) {
      const Tensor m = late_gradient(r, s.w).lerp(s.m, o.beta1);
      terms.push_back(torch::where(has_squares, m / root, 0) * (1.0 / ranks));
    }
    const Tensor average = torch::where(has_squares, ranks > 1 ? sum.of(terms) : terms.front(), 0);
    s.m = root * average;
    s.w.mul_(1 - o.lr * o.weight_decay).add_(average, -o.lr / (1 - std::pow(o.beta1, kFreezeStep)));
  }
  return s;
}

// By one rank without a codec, by two and four in one bit.
TEST(FrozenAdam, RanksHaveTheBitsOfASequentialProgram) {
  for (const int ranks : {1, 2, 4}) {
    const Sequential expected = sequential_program(ranks);
    test::on_ranks(ranks, [&](comm::Communicator& world) {
      const Tensor p = torch::ones({kNumbers}).requires_grad_();
      const std::vector<NamedParameter> parameters = {{.name = "w", .tensor = p}};
      FusedOptimizer optimizer(kAdamW, parameters);
      FrozenAdam frozen(optimizer, kFreezeStep);
      GradientReducer reducer(world, parameters);
      reducer.prepare_with(
          [&](const ParameterRange& r) { frozen.prepare_gradients(r.first, r.last); });
      for (int step = 1; step <= kSteps; ++step) {
        const bool is_frozen = step > kFreezeStep;
        if (step == 1 || step == kFreezeStep + 1) {
          const Codec codec = is_frozen ? Codec::kSign : Codec::kNone;
          reducer.set_plan(plan_of_replicas(
              parameters, world.size(),
              {.overlap = Overlap::at_the_end(), .algorithm = {}, .codec = codec}));
        }
        p.mutable_grad() =
            is_frozen ? late_gradient(world.rank(), p) : early_gradient(world.rank(), step);
        throw_if_error(reducer.reduce());
        throw_if_error(frozen.step({.lr = kAdamW.lr}, 0, 1));
      }
      EXPECT_TRUE(p.equal(expected.w)) << ranks;
      EXPECT_TRUE(optimizer.values().slots[0][0].equal(expected.m)) << ranks;
      EXPECT_TRUE(optimizer.values().slots[1][0].equal(expected.v)) << ranks;
    });
  }
}

/// Two steps by each plan of a run, the first of which are those before the freeze.
void expect_plans(const std::vector<int>& hosts, std::int64_t bucket_bytes) {
  test::Problem problem = test::mlp_problem();
  problem.type = torch::kFloat32;
  PlanRun late;
  late.hosts = hosts;
  late.problem = problem;
  late.batches = problem.batches(4, 13);
  late.options.optimizer = kAdamW;
  const Strategy strategy{.kind = Strategy::Kind::kDdp,
                          .parameters = Strategy::Parameters::kReplicated};
  late.plan =
      parallel::plan_for(strategy, problem.model(3)->split_shape(), {.ranks_per_host = hosts},
                         {.bucket_bytes = bucket_bytes, .reduction = {.codec = Codec::kSign}})
          .take_or_throw();
  PlanRun early = late;
  early.plan = plan_before_freeze(late.plan);
  analysis::StepSizes sizes = step_sizes_of(late.options);
  sizes.agreed_numbers = 0;
  std::vector<test::Values> values(static_cast<std::size_t>(late.ranks()));
  test::on_plan_ranks(late, [&](test::PlanRank& rank) {
    freeze_after(rank.store(), 2);
    for (const PlanRun* phase : {&early, &late}) {
      throw_if_error(rank.runner().set_plan(phase->plan));
      const analysis::StepCost cost = test::predicted_cost(*phase, sizes);
      rank.trace.clear();
      for (int step = 0; step < 2; ++step) {
        const std::uint64_t before = rank.groups.bytes_sent();
        rank.try_step().take_or_throw();
        EXPECT_EQ(static_cast<std::int64_t>(rank.groups.bytes_sent() - before),
                  cost.ranks[static_cast<std::size_t>(rank.rank())].between_hosts);
      }
      test::expect_trace(rank.trace, project(phase->plan, rank.rank()), 2);
    }
    values[static_cast<std::size_t>(rank.rank())] = rank.values();
    throw_if_error(rank.groups.world().barrier());
  });
  EXPECT_GT(test::predicted_cost(early, sizes).total().between_hosts,
            4 * test::predicted_cost(late, sizes).total().between_hosts);
  for (const test::Values& of_rank : values) test::expect_near(of_rank, values[0], 0, "replicas");
}

TEST(FrozenAdam, StepsBeforeAndAfterAreTheirPlansAndSendTheirBytes) {
  expect_plans({1, 1}, 0);
  expect_plans({2, 1}, 0);
  expect_plans({1, 1, 1}, 2000);
}

class OneBitAdam : public test::TrainerRun {
 protected:
  OneBitAdam() : TrainerRun("stormo_one_bit_adam_") {
    options.strategy = {.kind = Strategy::Kind::kDdp,
                        .parameters = Strategy::Parameters::kReplicated};
    options.optimizer = kAdamW;
    options.verify_every = 1;
    options.gradients.overlap = false;
    options.gradients.codec = Codec::kSign;
    freeze_after = 8;
  }
};

TEST_F(OneBitAdam, WithoutACodecRanksTrainAsOneProcess) {
  options.gradients.codec = Codec::kNone;
  const auto one = run(1);
  for (const int ranks : {2, 3}) {
    EXPECT_LT(test::distance(run(ranks).values, one.values), 1e-9) << ranks;
  }
  freeze_after = 0;
  EXPECT_GT(test::distance(run(1).values, one.values), 1e-4);
}

TEST_F(OneBitAdam, UntilTheFreezeNothingIsRounded) {
  options.steps = 8;
  const auto compressed = run(3);
  options.gradients.codec = Codec::kNone;
  EXPECT_EQ(compressed.end.weights_hash, run(3).end.weights_hash);
  freeze_after = 0;
  EXPECT_EQ(compressed.end.weights_hash, run(3).end.weights_hash);
}

TEST_F(OneBitAdam, TrainsOnAnyRanks) {
  for (const int ranks : {2, 3, 5}) {
    const auto run_of_ranks = run(ranks);
    EXPECT_LT(run_of_ranks.steps.back().loss, 0.9 * run_of_ranks.steps[7].loss) << ranks;
  }
}

TEST_F(OneBitAdam, ARunGoesOnBitwiseFromBothPhases) {
  options.checkpoint.directory = folder;
  options.gradients.bucket_bytes = 4096;
  for (const Codec codec : {Codec(Codec::kSign), Codec(Codec::kTopK, 0.1)}) {
    options.gradients.codec = codec;
    expect_bits_of_whole_run(2, {5, 8, 13}, to_string(codec));
  }
}

// What a codec has lost is that of the ranks before: others train as well, but with other numbers.
TEST_F(OneBitAdam, ARunGoesOnOnOtherRanks) {
  options.checkpoint.directory = folder;
  options.overwrite = true;
  for (const Codec::Kind codec : {Codec::kNone, Codec::kSign}) {
    options.gradients.codec = codec;
    const auto whole = run(2);
    for (const int ranks : {1, 3}) {
      options.steps = 13;
      run(2);
      options.steps = 20;
      const auto other = resumed(ranks);
      EXPECT_EQ(other.steps.front().step, 14);
      EXPECT_LT(other.steps.back().loss, 1.2 * whole.steps.back().loss) << ranks;
      if (codec == Codec::kNone) {
        EXPECT_LT(test::distance(other.values, whole.values), 1e-9) << ranks;
      }
    }
  }
}

TEST_F(OneBitAdam, WhatDoesNotGoWithItIsRefusedAtOnce) {
  options.strategy.parameters = Strategy::Parameters::kHostShared;
  options.clip_norm = 1;
  options.optimizer.kind = Kind::kLion;
  const Status refused = try_run(2).status();
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_THAT(refused.message(), HasSubstr("only adam and adamw"));
  EXPECT_THAT(refused.message(), HasSubstr("strategy.parameters=replicated"));
  EXPECT_THAT(refused.message(), HasSubstr("leave out train.clip_norm"));

  TrainerOptions cut = options;
  cut.strategy.parameters = Strategy::Parameters::kReplicated;
  cut.clip_norm = 0;
  cut.optimizer.kind = Kind::kAdam;
  EXPECT_TRUE(check_freeze(cut, /*scales_loss=*/false).ok());
  EXPECT_THAT(check_freeze(cut, /*scales_loss=*/true).message(), HasSubstr("not float16"));
  cut.strategy.pipeline = 2;
  cut.commits = true;
  cut.logical_shards = 4;
  cut.gradients.reducer = Reducer::kAdasum;
  const std::string message = check_freeze(cut, /*scales_loss=*/false).message();
  for (const char* part : {"strategy.pipeline", "elastic.enabled", "logical_shards", "adasum"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
}

/// Of a recipe with these keys besides, on two ranks.
std::vector<std::string> errors_with(const std::string& optimizer, const std::string& strategy) {
  const std::vector<std::string> keys = {"batch=8",
                                         "steps=1",
                                         "data.kind=mnist",
                                         "model.kind=mlp",
                                         "model.sizes=784,10",
                                         "data.path=.",
                                         "compression=sign",
                                         "optimizer.freeze_step=100",
                                         "optimizer.kind=" + optimizer,
                                         "strategy.kind=" + strategy};
  const ParsedRecipe parsed = parse_recipe("schema_version = 1\n", "r.toml", "recipes", keys);
  if (strategy == "ddp") {
    EXPECT_EQ(parsed.recipe.train.strategy.parameters, Strategy::Parameters::kReplicated);
  }
  return check_recipe(parsed, 2);
}

TEST(OneBitAdamRecipe, IsOfAdamOnCopies) {
  EXPECT_THAT(errors_with("adamw", "ddp"), IsEmpty());
  EXPECT_THAT(errors_with("adam", "ddp"), IsEmpty());
  EXPECT_THAT(errors_with("lion", "ddp"),
              ElementsAre(HasSubstr("optimizer.freeze_step: only adam and adamw have a mean")));
  EXPECT_THAT(errors_with("adamw", "fsdp"),
              ElementsAre(HasSubstr("optimizer.freeze_step: ranks average momenta")));
}

}  // namespace
}  // namespace stormo::train
