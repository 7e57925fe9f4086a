// Oracle: torch::optim::LBFGS, which has another line search, at the minimum.
#include <stormo/train/optimizer/lbfgs_optimizer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/optimizer/fused_optimizer.h>

namespace stormo::train {
namespace {

struct Regression {
  Regression() {
    torch::manual_seed(3);
    x = torch::randn({300, 20}, torch::kFloat64);
    y = (x.select(1, 0) + 0.5 * torch::randn({300}, torch::kFloat64) > 0).to(torch::kFloat64);
    weights = torch::zeros({20}, torch::kFloat64).requires_grad_();
    bias = torch::zeros({1}, torch::kFloat64).requires_grad_();
  }
  torch::Tensor loss() const {
    const torch::Tensor logits = torch::mv(x, weights) + bias;
    return torch::binary_cross_entropy_with_logits(logits, y) +
           5e-3 * (weights.square().sum() + bias.square().sum());
  }
  torch::Tensor x, y, weights, bias;
};

TEST(LbfgsOptimizer, FindsTheMinimumThatLibtorchFinds) {
  Regression ours, theirs;
  LbfgsOptimizer optimizer({.kind = OptimizerOptions::Kind::kLbfgs, .lr = 1},
                           {{"weights", ours.weights}, {"bias", ours.bias}});
  int steps = 0;
  for (; !optimizer.has_converged() && steps < 200; ++steps) {
    optimizer.zero_grad();
    const torch::Tensor loss = ours.loss();
    loss.backward();
    ASSERT_TRUE(optimizer.step({.lr = 1, .loss = loss.item<double>()}, 0, 2).ok());
  }
  EXPECT_LT(steps, 200);
  torch::optim::LBFGS reference({theirs.weights, theirs.bias}, torch::optim::LBFGSOptions(1)
                                                                   .max_iter(300)
                                                                   .tolerance_grad(1e-12)
                                                                   .tolerance_change(1e-16)
                                                                   .line_search_fn("strong_wolfe"));
  reference.step([&] {
    reference.zero_grad();
    torch::Tensor loss = theirs.loss();
    loss.backward();
    return loss;
  });
  EXPECT_LT((ours.weights - theirs.weights).norm().item<double>(), 1e-8);
  EXPECT_LT((ours.bias - theirs.bias).norm().item<double>(), 1e-8);
}

const OptimizerOptions kOptions{.kind = OptimizerOptions::Kind::kLbfgs, .lr = 1};

LbfgsOptimizer optimizer_of(const Regression& regression) {
  return LbfgsOptimizer(kOptions, {{"weights", regression.weights}, {"bias", regression.bias}});
}

void make_steps(const Regression& regression, LbfgsOptimizer& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    const torch::Tensor loss = regression.loss();
    loss.backward();
    throw_if_error(optimizer.step({.lr = 1, .loss = loss.item<double>()}, 0, 2));
  }
}

TEST(LbfgsOptimizer, GoesOnFromItsStateBitForBit) {
  constexpr int kSteps = 20;
  const Regression whole;
  LbfgsOptimizer uncut = optimizer_of(whole);
  make_steps(whole, uncut, kSteps);
  for (const int cut : {0, 1, 2, 5, 13}) {
    for (const bool is_settled : {false, true}) {
      const Regression first, second;
      LbfgsOptimizer before = optimizer_of(first), after = optimizer_of(second);
      make_steps(first, before, cut);
      if (is_settled) throw_if_error(before.finish());
      {
        const torch::NoGradGuard guard;
        second.weights.copy_(first.weights);
        second.bias.copy_(first.bias);
      }
      EXPECT_EQ(before.state().empty(), cut == 0);
      throw_if_error(after.load_state(before.state()));
      make_steps(second, after, kSteps - cut);
      EXPECT_TRUE(torch::equal(second.weights, whole.weights)) << "cut at " << cut;
      EXPECT_TRUE(torch::equal(second.bias, whole.bias)) << "cut at " << cut;
    }
  }
}

TEST(LbfgsOptimizer, RefusesTheStateOfAnother) {
  const Regression regression;
  LbfgsOptimizer optimizer = optimizer_of(regression);
  make_steps(regression, optimizer, 3);
  const auto state = optimizer.state();
  const auto refused = [](const std::map<std::string, torch::Tensor>& given) {
    const Status status = optimizer_of(Regression()).load_state(given);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refused({{"optimizer.exp_avg.weights", torch::zeros({20})}}),
              testing::HasSubstr("another optimizer"));
  auto other = state;
  other["optimizer.lbfgs_s0.weights"] = torch::zeros({21}, torch::kFloat64);
  EXPECT_THAT(refused(other), testing::HasSubstr("optimizer.lbfgs_s0.weights"));
  other.erase("optimizer.lbfgs_s0.weights");
  EXPECT_THAT(refused(other), testing::HasSubstr("optimizer.lbfgs_s0.weights"));
  OptimizerOptions options = kOptions;
  options.history = 5;
  LbfgsOptimizer shorter(options, {{"weights", regression.weights}, {"bias", regression.bias}});
  EXPECT_THAT(shorter.load_state(state).message(), testing::HasSubstr("optimizer.history=10"));
  FusedOptimizer sgd({}, {{"weights", regression.weights}, {"bias", regression.bias}});
  EXPECT_EQ(sgd.load_state(state).code(), Code::kInvalidArgument);
}

TEST(LbfgsOptimizer, RefusesWhatItCannotUpdate) {
  const OptimizerOptions options{.kind = OptimizerOptions::Kind::kLbfgs};
  const torch::Tensor half = torch::zeros({3}, torch::kBFloat16).requires_grad_();
  EXPECT_THROW(LbfgsOptimizer(options, {{"half", half}}), Error);
  const torch::Tensor turned = torch::zeros({3, 4}).t().requires_grad_();
  EXPECT_THROW(LbfgsOptimizer(options, {{"turned", turned}}), Error);
  FusedOptimizer ranges(options, {{"a", torch::zeros({2}).requires_grad_()}});
  EXPECT_EQ(ranges.step(1).code(), Code::kInvalidArgument);
  LbfgsOptimizer optimizer(options, {{"a", torch::zeros({2})}, {"b", torch::zeros({2})}});
  EXPECT_EQ(optimizer.step({.lr = 1}, 0, 1).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace stormo::train
