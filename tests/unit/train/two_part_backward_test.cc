// A backward in two parts: the same numbers as in one, nothing computed twice, and what only the
// first part needs is freed by it.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/autograd/two_part_backward.h>

namespace stormo::train {
namespace {

using Tensors = std::vector<torch::Tensor>;
/// Of an input and parameters: an output.
using Function = std::function<torch::Tensor(const torch::Tensor&, const Tensors&)>;

int calls = 0;

/// An operation of a user, which computes the gradients of input and parameter at once.
struct Scale : torch::autograd::Function<Scale> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& by) {
    context->save_for_backward({x, by});
    return x * by;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& g) {
    ++calls;
    const Tensors saved = context->get_saved_variables();
    return {g[0] * saved[1], (g[0] * saved[0]).sum(0)};
  }
};

/// Hands its input on, and counts its backwards.
struct Counted : torch::autograd::Function<Counted> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext*, const Tensors& g) {
    ++calls;
    return g;
  }
};

struct Case {
  std::string name;
  Function f;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

Tensors weights() {
  torch::manual_seed(1);
  Tensors out;
  for (int i = 0; i < 3; ++i) {
    out.push_back(torch::randn({4, 4}, torch::kFloat64).requires_grad_());
    out.push_back(torch::randn({4}, torch::kFloat64).requires_grad_());
  }
  return out;
}

torch::Tensor input() {
  torch::manual_seed(2);
  return torch::randn({5, 4}, torch::kFloat64).requires_grad_();
}

class SplitBackwardOf : public testing::TestWithParam<Case> {};

TEST_P(SplitBackwardOf, GivesTheGradientsOfOneBackward) {
  const Function& f = GetParam().f;
  const Tensors one = weights(), two = weights();
  const torch::Tensor x1 = input(), x2 = input();
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {  // gradients add up
    const torch::Tensor y = f(x1, one);
    const torch::Tensor gradient = torch::cos(y.detach());
    y.backward(gradient);
    TwoPartBackward split(f(x2, two), gradient, x2);
    const bool uses_input = x1.grad().defined();
    ASSERT_EQ(x2.grad().defined(), uses_input);
    EXPECT_TRUE(!uses_input || x2.grad().equal(x1.grad()));
    const auto done = [&](const torch::Tensor& p) { return p.grad().defined(); };
    EXPECT_TRUE(micro_batch > 0 || std::ranges::none_of(two, done));
    split.parameters();
    for (std::size_t i = 0; i < one.size(); ++i) {
      ASSERT_EQ(two[i].grad().defined(), one[i].grad().defined()) << i;
      if (one[i].grad().defined()) {
        EXPECT_TRUE(two[i].grad().allclose(one[i].grad(), 1e-14, 1e-14)) << i;
      }
    }
  }
}

torch::Tensor linear(const torch::Tensor& x, const Tensors& w, std::size_t i) {
  return torch::linear(x, w[2 * i], w[2 * i + 1]);
}

INSTANTIATE_TEST_SUITE_P(
    Graphs, SplitBackwardOf,
    testing::Values(
        Case{"layers",
             [](const torch::Tensor& x, const Tensors& w) {
               return linear(torch::tanh(linear(torch::relu(linear(x, w, 0)), w, 1)), w, 2);
             }},
        Case{"residuals_and_norms",
             [](const torch::Tensor& x, const Tensors& w) {
               const auto y = x + linear(torch::layer_norm(x, {4}, w[1], w[3]), w, 0);
               return y + torch::gelu(linear(y, w, 2)) * w[5];
             }},
        Case{"a_weight_used_twice",
             [](const torch::Tensor& x, const Tensors& w) {
               return torch::linear(torch::tanh(torch::linear(x, w[0])), w[0].t()) + w[1];
             }},
        Case{"computations_on_weights",
             [](const torch::Tensor& x, const Tensors& w) {
               const auto both = torch::tanh(torch::mm(w[0], w[2]));
               return x.mm(both).mm(w[4] / w[4].norm()) + both.sum() * x;
             }},
        Case{"an_operation_of_a_user",
             [](const torch::Tensor& x, const Tensors& w) {
               return linear(Scale::apply(linear(x, w, 0), w[3]), w, 2);
             }},
        Case{"views_and_changes_in_place",
             [](const torch::Tensor& x, const Tensors& w) {
               torch::Tensor y = linear(x, w, 0);
               y.slice(1, 0, 2).mul_(w[3].slice(0, 0, 2));
               return y.add_(w[5]).t().contiguous().t();
             }},
        Case{"no_parameters",
             [](const torch::Tensor& x, const Tensors&) { return torch::tanh(x); }},
        Case{"no_input", [](const torch::Tensor&, const Tensors& w) { return linear(w[0], w, 1); }},
        Case{"the_input_itself", [](const torch::Tensor& x, const Tensors&) { return x; }}),
    [](const auto& c) { return c.param.name; });

TEST(TwoPartBackward, WithoutAnInputAllIsLeftForTheSecondPart) {
  const Tensors w = weights();
  const torch::Tensor loss = linear(input().detach(), w, 0).square().mean();
  TwoPartBackward split(loss, {}, {});
  EXPECT_FALSE(w[0].grad().defined());
  split.parameters();
  EXPECT_TRUE(w[0].grad().defined());
}

TEST(TwoPartBackward, ALossHasTheGradientOne) {
  const Tensors one = weights(), two = weights();
  const torch::Tensor x1 = input(), x2 = input();
  linear(x1, one, 0).square().mean().backward();
  TwoPartBackward split(linear(x2, two, 0).square().mean(), {}, x2);
  split.parameters();
  EXPECT_TRUE(x2.grad().equal(x1.grad()));
  EXPECT_TRUE(two[0].grad().equal(one[0].grad()));
}

TEST(TwoPartBackward, ComputesNothingTwice) {
  const Tensors w = weights();
  const torch::Tensor x = input();
  calls = 0;
  TwoPartBackward split(linear(Counted::apply(linear(x, w, 0)), w, 1),
                        torch::ones({5, 4}, torch::kFloat64), x);
  EXPECT_EQ(calls, 1);
  split.parameters();
  EXPECT_EQ(calls, 1);
}

TEST(TwoPartBackward, FreesWhatOnlyTheFirstPartNeeds) {
  const Tensors w = weights();
  const torch::Tensor x = input();
  torch::Tensor middle;  // the backward of tanh needs it, that of the second layer's weight, too
  torch::Tensor mask;    // only the first part needs it
  torch::Tensor y;
  {
    const auto a = torch::tanh(linear(x, w, 0));
    middle = a.detach();
    const auto factor = torch::rand({5, 4}, torch::kFloat64);
    mask = factor.detach();
    y = linear(a, w, 1) * factor;
  }
  ASSERT_GT(mask.storage().use_count(), 1);
  TwoPartBackward split(std::exchange(y, {}), torch::ones({5, 4}, torch::kFloat64), x);
  EXPECT_EQ(mask.storage().use_count(), 1);
  EXPECT_GT(middle.storage().use_count(), 1);
  split.parameters();
  EXPECT_EQ(middle.storage().use_count(), 1);
}

}  // namespace
}  // namespace stormo::train
