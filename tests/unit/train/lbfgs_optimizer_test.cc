// Oracle: torch::optim::LBFGS, which has another line search, at the minimum.
#include <stormo/train/optimizer/lbfgs_optimizer.h>

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
