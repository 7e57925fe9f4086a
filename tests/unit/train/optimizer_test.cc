#include <stormo/train/optimizer/optimizer.h>

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/optimizer/learning_rate.h>

#include "toy.h"

namespace stormo::train {
namespace {

using test::make_toy_module;
using test::ToyModule;

torch::Tensor loss_of(ToyModule& module, int step) {
  torch::manual_seed(1000 + static_cast<std::uint64_t>(step));
  return module.forward(torch::randn({7, 20}, torch::kFloat64)).square().sum();
}

// Ten steps of ours and of libtorch's on equal modules; returns the two.
template <class Reference>
std::pair<std::shared_ptr<ToyModule>, std::shared_ptr<ToyModule>> ten_steps(
    const OptimizerOptions& options, const Reference& make_reference) {
  auto ours = make_toy_module(5), theirs = make_toy_module(5);
  auto optimizer = make_optimizer(options, trainable_parameters(*ours));
  auto reference = make_reference(theirs->parameters());
  for (int step = 0; step < 10; ++step) {
    optimizer->zero_grad();
    loss_of(*ours, step).backward();
    EXPECT_TRUE(optimizer->step(options.lr).ok());
    reference.zero_grad();
    loss_of(*theirs, step).backward();
    reference.step();
  }
  return {ours, theirs};
}

TEST(Sgd, IsBitwiseThatOfLibtorch) {
  for (const auto& [momentum, nesterov] : {std::pair(0.0, false), {0.9, false}, {0.9, true}}) {
    for (const double decay : {0.0, 0.01}) {
      const OptimizerOptions options{
          .lr = 0.003, .momentum = momentum, .nesterov = nesterov, .weight_decay = decay};
      const auto reference = torch::optim::SGDOptions(options.lr)
                                 .momentum(momentum)
                                 .nesterov(nesterov)
                                 .weight_decay(decay);
      const auto [ours, theirs] = ten_steps(options, [&](const auto& parameters) {
        return torch::optim::SGD(parameters, reference);
      });
      for (const auto& p : ours->named_parameters()) {
        EXPECT_TRUE(torch::equal(p.value(), theirs->named_parameters()[p.key()]))
            << p.key() << " momentum " << momentum << " decay " << decay;
      }
    }
  }
}

TEST(AdamW, IsThatOfLibtorch) {
  for (const double decay : {0.0, 0.1}) {
    OptimizerOptions options{.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.002};
    options.weight_decay = decay;
    const auto [ours, theirs] = ten_steps(options, [&](const auto& parameters) {
      return torch::optim::AdamW(parameters,
                                 torch::optim::AdamWOptions(options.lr).weight_decay(decay));
    });
    for (const auto& p : ours->named_parameters()) {
      EXPECT_TRUE(torch::allclose(p.value(), theirs->named_parameters()[p.key()], 1e-6, 1e-12))
          << p.key();
    }
  }
}

TEST(Optimizer, SkipsParametersWithoutAGradient) {
  for (const auto kind : {OptimizerOptions::Kind::kSgd, OptimizerOptions::Kind::kAdamW}) {
    auto module = make_toy_module(5);
    const torch::Tensor before = module->last->weight.detach().clone();
    auto optimizer =
        make_optimizer({.kind = kind, .weight_decay = 0.1}, trainable_parameters(*module));
    module->first(torch::ones({1, 20}, torch::kFloat64)).sum().backward();
    EXPECT_TRUE(optimizer->step(0.1).ok());
    EXPECT_TRUE(torch::equal(module->last->weight, before));
    EXPECT_EQ(optimizer->state().count("optimizer.exp_avg.last.weight"), 0u);
  }
}

TEST(Optimizer, StateRoundTripIsBitwise) {
  OptimizerOptions sgd{.lr = 0.01, .momentum = 0.9};
  OptimizerOptions adamw{.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  for (const OptimizerOptions& options : {sgd, adamw}) {
    auto a = make_toy_module(5), b = make_toy_module(5);
    auto from = make_optimizer(options, trainable_parameters(*a));
    auto to = make_optimizer(options, trainable_parameters(*b));
    const auto steps = [&options](ToyModule& m, Optimizer& o, int first, int last) {
      for (int step = first; step < last; ++step) {
        o.zero_grad();
        loss_of(m, step).backward();
        EXPECT_TRUE(o.step(options.lr).ok());
      }
    };
    steps(*a, *from, 0, 3);
    std::map<std::string, torch::Tensor> saved;
    for (const auto& [name, t] : from->state()) saved.emplace(name, t.clone());
    {
      const torch::NoGradGuard no_grad;
      for (const auto& p : b->named_parameters()) p.value().copy_(a->named_parameters()[p.key()]);
    }
    ASSERT_TRUE(to->load_state(saved).ok()) << to->load_state(saved).to_string();
    steps(*a, *from, 3, 6);
    steps(*b, *to, 3, 6);
    for (const auto& p : a->named_parameters()) {
      EXPECT_TRUE(torch::equal(p.value(), b->named_parameters()[p.key()])) << p.key();
    }
  }
}

TEST(Optimizer, RefusesForeignState) {
  auto module = make_toy_module(5);
  auto optimizer = make_optimizer({.momentum = 0.9}, trainable_parameters(*module));
  const auto of = [](const std::string& name, torch::Tensor t) {
    return std::map<std::string, torch::Tensor>{{name, std::move(t)}};
  };
  const Status shape = optimizer->load_state(
      of("optimizer.momentum_buffer.last.bias", torch::zeros({4}, torch::kFloat64)));
  EXPECT_EQ(shape.code(), Code::kInvalidArgument);
  EXPECT_NE(shape.message().find("last.bias"), std::string::npos) << shape.message();
  EXPECT_FALSE(optimizer->load_state(of("optimizer.exp_avg.last.bias", torch::zeros({3}))).ok());

  auto adamw =
      make_optimizer({.kind = OptimizerOptions::Kind::kAdamW}, trainable_parameters(*module));
  EXPECT_FALSE(
      adamw->load_state(of("optimizer.exp_avg.last.bias", torch::zeros({3}, torch::kFloat64)))
          .ok());
  EXPECT_TRUE(adamw->state().empty());
}

TEST(ClipGradients, ScalesToTheNorm) {
  auto module = make_toy_module(5);
  for (torch::Tensor& p : module->parameters()) {
    p.mutable_grad() = torch::ones_like(p);
  }
  double count = 0;
  for (const torch::Tensor& p : module->parameters()) count += static_cast<double>(p.numel());
  const auto parameters = trainable_parameters(*module);
  EXPECT_NEAR(*clip_gradients(parameters, 2.0), std::sqrt(count), 1e-9);
  EXPECT_NEAR(*clip_gradients(parameters, 100.0), 2.0, 1e-5);
}

TEST(ClipGradients, RefusesANormThatIsNotPositive) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double max_norm : {0.0, -1.0, nan}) {
    EXPECT_EQ(clip_coefficient(1, max_norm).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(clip_gradients({}, max_norm).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(*clip_coefficient(1, 2), 1);
  EXPECT_NEAR(*clip_coefficient(4, 2), 0.5, 1e-6);
}

TEST(LearningRate, FallsInSteps) {
  const LearningRateOptions steps{
      .kind = LearningRateOptions::Kind::kStep, .warmup_steps = 2, .step_size = 5, .gamma = 0.5};
  EXPECT_DOUBLE_EQ(learning_rate(steps, 1.0, 0, 100), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(steps, 1.0, 6, 100), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(steps, 1.0, 7, 100), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(steps, 1.0, 17, 100), 0.125);
}

TEST(LearningRate, ScalesWithTheBatch) {
  EXPECT_EQ(scaled_learning_rate({}, 0.1, 4096), 0.1);
  EXPECT_DOUBLE_EQ(scaled_learning_rate({.base_batch = 128}, 0.1, 1024), 0.8);
}

TEST(LearningRate, WarmsUpAndFallsAlongACosine) {
  LearningRateOptions constant;
  EXPECT_EQ(learning_rate(constant, 0.5, 0, 10), 0.5);
  EXPECT_EQ(learning_rate(constant, 0.5, 9, 10), 0.5);
  LearningRateOptions cosine{
      .kind = LearningRateOptions::Kind::kCosine, .warmup_steps = 4, .min_lr = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 1.0, 0, 14), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 1.0, 3, 14), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 1.0, 4, 14), 1.0);
  EXPECT_NEAR(learning_rate(cosine, 1.0, 9, 14), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(cosine, 1.0, 14, 14), 0.1, 1e-12);
  cosine.warmup_steps = 20;
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 1.0, 9, 14), 0.5);
}

}  // namespace
}  // namespace stormo::train
