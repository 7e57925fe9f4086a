// Mixed precision from C++: computing in 16 bits, and loss scaling that all ranks agree on.
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/autograd/precision.h>
#include <stormo/train/optimizer/fused_optimizer.h>

#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Autocast, ComputesInSixteenBitsWhileItLives) {
  const torch::Tensor w = torch::randn({4, 4}, torch::requires_grad());
  const torch::Tensor x = torch::randn({2, 4});
  {
    const Autocast outer(at::kCPU, torch::kBFloat16);
    EXPECT_EQ(torch::mm(x, w).scalar_type(), torch::kBFloat16);
    {
      const Autocast inner(at::kCPU, torch::kHalf);
      EXPECT_EQ(torch::mm(x, w).scalar_type(), torch::kHalf);
    }
    EXPECT_EQ(torch::mm(x, w).scalar_type(), torch::kBFloat16);
    EXPECT_EQ(torch::mse_loss(torch::mm(x, w), torch::mm(x, w)).scalar_type(), torch::kFloat32);
  }
  EXPECT_EQ(torch::mm(x, w).scalar_type(), torch::kFloat32);
  EXPECT_THROW(Autocast(at::kCPU, torch::kFloat32), Error);
  EXPECT_EQ(torch::mm(x, w).scalar_type(), torch::kFloat32);
}

TEST(Autocast, RoundsWeightsAnewAfterItsEnd) {
  const torch::Tensor w = torch::ones({2, 2}, torch::requires_grad());
  const auto sum = [&] {
    const Autocast autocast(at::kCPU, torch::kBFloat16);
    return torch::mm(torch::ones({1, 2}), w).sum().item<double>();
  };
  EXPECT_EQ(sum(), 4);
  {
    const torch::NoGradGuard no_grad;
    w.fill_(2);
  }
  EXPECT_EQ(sum(), 8);
}

/// A parameter of one number for each rank, to see which steps are made.
struct Counter {
  torch::Tensor weight = torch::zeros({3}, torch::requires_grad());
  FusedOptimizer optimizer{{.kind = OptimizerOptions::Kind::kSgd}, {{"weight", weight}}};

  /// d(loss)/d(weight) = gradient.
  bool step(GradScaler& scaler, double gradient) {
    optimizer.zero_grad();
    scaler.scale((weight * gradient).sum()).backward();
    const Result<bool> good = scaler.check(optimizer.parameters());
    throw_if_error(good.status());
    if (*good) {
      throw_if_error(optimizer.step({.lr = 1, .gradient_scale = scaler.gradient_scale()}, 0, 1));
    }
    scaler.update();
    return *good;
  }
  double value() const { return weight[0].item<double>(); }
};

TEST(GradScaler, AnOverflowOnOneRankSkipsOneStepOnAll) {
  test::on_ranks(3, [](comm::Communicator& world) {
    for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
      Counter counter;
      GradScaler scaler(world);
      for (int step = 0; step < 5; ++step) {
        const bool inject = step == 2 && world.rank() == 1;
        EXPECT_EQ(counter.step(scaler, inject ? bad : -1.0), step != 2) << "step " << step;
        EXPECT_EQ(scaler.scale(), step < 2 ? 65536 : 32768) << "step " << step;
      }
      EXPECT_EQ(counter.value(), 4);  // exact: the scale is a power of two
    }
  });
}

TEST(GradScaler, SkipsShardedStepsOnAllRanksToo) {
  const test::Problem problem = test::mlp_problem();
  std::vector<std::shared_ptr<model::Chain>> models;
  for (int rank = 0; rank < 3; ++rank) models.push_back(problem.model(1));
  const std::vector<test::Batch> batches = problem.batches(3, 4);
  test::on_ranks(3, [&](comm::Communicator& world) {
    FullyShardedDataParallel fsdp(world, models[static_cast<std::size_t>(world.rank())]);
    const auto optimizer = fsdp.make_optimizer({.kind = OptimizerOptions::Kind::kSgd});
    GradScaler scaler(world);
    int made = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      fsdp.zero_grad();
      const torch::Tensor loss =
          model::cross_entropy(fsdp.forward(batches[i].x), batches[i].target);
      scaler.scale(loss).backward();
      const std::vector<NamedParameter> shards = fsdp.shards();
      if (i == 1 && world.rank() == 2) shards.front().tensor.grad().fill_(kInfinity);
      const Result<bool> good = scaler.check(shards);
      throw_if_error(good.status());
      if (*good) {
        fsdp.step(*optimizer, {.lr = 0.1, .gradient_scale = scaler.gradient_scale()});
        ++made;
      }
      scaler.update();
    }
    EXPECT_EQ(made, 2);
    EXPECT_EQ(scaler.scale(), 32768);
    for (const TensorPiece& piece : fsdp.state()) {
      EXPECT_TRUE(torch::isfinite(piece.values).all().item<bool>()) << piece.name;
    }
  });
}

TEST(GradScaler, GrowsAfterGoodStepsInARow) {
  test::on_ranks(1, [](comm::Communicator& world) {
    GradScaler scaler(world, {.initial_scale = 8, .growth_interval = 3});
    const auto run = [&](const std::vector<bool>& steps) {
      for (const bool good : steps) {
        EXPECT_EQ(*scaler.check(good), good);
        scaler.update();
      }
      return scaler.scale();
    };
    EXPECT_EQ(run({true, true}), 8);
    EXPECT_EQ(run({true}), 16);
    EXPECT_EQ(run({true, true, false}), 8);
    EXPECT_EQ(run({true, true}), 8);
    EXPECT_EQ(run({true}), 16);
    EXPECT_EQ(run({false, false}), 4);
  });
}

TEST(GradScaler, TellsLargeFromInfinite) {
  test::on_ranks(1, [](comm::Communicator& world) {
    GradScaler scaler(world);
    const torch::Tensor large = torch::full({10}, 3e38);  // its norm overflows
    EXPECT_TRUE(*scaler.check(std::vector{large, torch::Tensor(), torch::empty({0})}));
    EXPECT_TRUE(*scaler.check(std::vector{torch::full({10}, 60000, torch::kHalf)}));
    for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
      for (std::int64_t i = 0; i < 70; ++i) {
        torch::Tensor t = torch::zeros({70}, type);
        t[i] = kInfinity;
        EXPECT_FALSE(*scaler.check(std::vector{large, t})) << type << " " << i;
      }
    }
  });
}

TEST(GradScaler, RefusesWhatCannotHelp) {
  test::on_ranks(1, [](comm::Communicator& world) {
    EXPECT_THROW(GradScaler(world, {.initial_scale = 0}), Error);
    EXPECT_THROW(GradScaler(world, {.growth_factor = 1}), Error);
    EXPECT_THROW(GradScaler(world, {.backoff_factor = 1}), Error);
    GradScaler scaler(world);
    EXPECT_THROW(scaler.update(), Error);
    const auto overflow_for_ever = [&] {
      for (;;) {
        throw_if_error(scaler.check(false).status());
        scaler.update();
      }
    };
    EXPECT_THROW(overflow_for_ever(), Error);
  });
}

TEST(GradScaler, ContinuesFromItsState) {
  test::on_ranks(1, [](comm::Communicator& world) {
    const GradScalerOptions options{.initial_scale = 8, .growth_interval = 4};
    const auto good_step = [](GradScaler& s) {
      EXPECT_TRUE(*s.check(true));
      s.update();
    };
    GradScaler first(world, options), second(world, options);
    for (int i = 0; i < 7; ++i) good_step(first);
    ASSERT_TRUE(second.load_state(first.state()).ok());
    EXPECT_EQ(second.scale(), 16);
    good_step(second);
    EXPECT_EQ(second.scale(), 32);

    auto state = first.state();
    state["grad_scaler.scale"] = torch::tensor({-1.0}, torch::kFloat64);
    EXPECT_EQ(second.load_state(state).code(), Code::kInvalidArgument);
    state.erase("grad_scaler.scale");
    EXPECT_EQ(second.load_state(state).code(), Code::kInvalidArgument);
    EXPECT_EQ(second.scale(), 32);
  });
}

/// Mean loss of the last 5 of 50 steps of a small MLP.
double loss_after_training(torch::ScalarType type) {
  const test::Problem problem = [] {
    test::Problem mlp = test::mlp_problem();
    mlp.type = torch::kFloat32;
    return mlp;
  }();
  const auto model = problem.model(3);
  const test::Batch batch = problem.batches(1, 32).front();
  double sum = 0;
  test::on_ranks(1, [&](comm::Communicator& world) {
    FusedOptimizer optimizer({.kind = OptimizerOptions::Kind::kAdamW},
                             trainable_parameters(*model));
    GradScaler scaler(world);
    for (int step = 0; step < 50; ++step) {
      optimizer.zero_grad();
      const torch::Tensor output = [&] {
        if (type == torch::kFloat32) return model->forward(batch.x);
        const Autocast autocast(at::kCPU, type);
        return model->forward(batch.x);
      }();
      EXPECT_EQ(output.scalar_type(), type);
      const torch::Tensor loss = model::cross_entropy(output.to(torch::kFloat32), batch.target);
      scaler.scale(loss).backward();
      if (*scaler.check(optimizer.parameters())) {
        throw_if_error(optimizer.step({.lr = 3e-3, .gradient_scale = scaler.gradient_scale()}, 0,
                                      optimizer.parameters().size()));
      }
      scaler.update();
      if (step >= 45) sum += loss.item<double>() / 5;
    }
  });
  return sum;
}

TEST(MixedPrecision, TrainsAsWellAsSinglePrecision) {
  const double single = loss_after_training(torch::kFloat32);
  EXPECT_LT(single, 1.4);  // log(5) = 1.61 at the start
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kHalf}) {
    const double mixed = loss_after_training(type);
    EXPECT_NEAR(mixed, single, 0.01 * single) << type;
    EXPECT_NE(mixed, single) << type;
  }
}

}  // namespace
}  // namespace stormo::train
