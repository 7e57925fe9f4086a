// Old values of parameters under the graphs that were computed with them.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include <torch/torch.h>

#include <stormo/train/autograd/weight_versions.h>

namespace stormo::train {
namespace {

using Use = WeightVersions::Use;
using Version = WeightVersions::Version;

/// Layers that keep their parameters for backward in different ways: as a view, as they are.
torch::nn::Sequential layers() {
  torch::manual_seed(5);
  torch::nn::Sequential out(torch::nn::Conv1d(1, 3, 2), torch::nn::Flatten(),
                            torch::nn::Linear(9, 4),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  out->to(torch::kFloat64);
  return out;
}

std::vector<torch::Tensor> gradients(torch::nn::Sequential& model, torch::Tensor output) {
  output.square().sum().backward();
  std::vector<torch::Tensor> out;
  for (torch::Tensor& p : model->parameters()) {
    out.push_back(p.grad().clone());
    p.mutable_grad().reset();
  }
  return out;
}

void update(WeightVersions& versions, torch::nn::Sequential& model) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> parameters = model->parameters();
  versions.begin_update(0, parameters.size());
  for (const torch::Tensor& p : parameters) p.mul_(0.5);  // counts as a change in place
}

TEST(WeightVersions, ABackwardUsesThoseOfItsForward) {
  torch::nn::Sequential model = layers();
  const torch::Tensor x = torch::randn({2, 1, 4}, torch::kFloat64);
  const auto expected = gradients(model, model->forward(x));
  WeightVersions versions(model->parameters());
  std::vector<std::pair<Version, torch::Tensor>> graphs;
  for (int i = 0; i < 3; ++i) {
    graphs.emplace_back(versions.newest(), model->forward(x));
    update(versions, model);
  }
  EXPECT_EQ(graphs[2].first->number, 2);
  {
    const Use first(&versions, graphs[0].first);
    const auto found = gradients(model, graphs[0].second);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i]));
  }
  // of another version they are others
  const Use second(&versions, graphs[1].first);
  EXPECT_FALSE(gradients(model, graphs[1].second)[0].equal(expected[0]));
}

TEST(WeightVersions, AForwardMayUseAnOldVersion) {
  torch::nn::Sequential model = layers();
  const torch::Tensor x = torch::randn({2, 1, 4}, torch::kFloat64);
  const torch::Tensor before = model->forward(x).detach();
  WeightVersions versions(model->parameters());
  const Version old = versions.newest();
  update(versions, model);
  const torch::Tensor after = model->forward(x).detach();
  EXPECT_FALSE(after.equal(before));
  {
    const Use use(&versions, old);
    EXPECT_TRUE(model->forward(x).equal(before));
  }
  EXPECT_TRUE(model->forward(x).equal(after));
}

TEST(WeightVersions, AutogradStillSeesAChangeInPlace) {
  torch::nn::Sequential model = layers();
  WeightVersions versions(model->parameters());
  const torch::Tensor loss = model->forward(torch::ones({2, 1, 4}, torch::kFloat64)).sum();
  update(versions, model);  // nobody holds the version
  EXPECT_ANY_THROW(loss.backward());
}

TEST(WeightVersions, ThereAreAsManyCopiesAsVersionsInUse) {
  torch::Tensor p = torch::ones({4}, torch::kFloat64);
  WeightVersions versions({p});
  const void* const original = p.data_ptr();
  std::vector<Version> held;
  for (int i = 0; i < 8; ++i) {
    held.push_back(versions.newest());
    if (held.size() > 1) held.erase(held.begin());
    versions.begin_update(0, 1);
    p.add_(1);
    if (i % 2 == 1) {
      EXPECT_EQ(p.data_ptr(), original) << "the memory of the beginning is free again";
    }
  }
  held.clear();
  versions.begin_update(0, 1);
  versions.drain();
  EXPECT_EQ(p.data_ptr(), original);
  EXPECT_TRUE(p.equal(torch::full({4}, 9, torch::kFloat64)));
}

// A later update of a part must not reach into a version that shares the rest.
TEST(WeightVersions, UpdatesOfPartsLeaveHeldVersionsAlone) {
  torch::Tensor a = torch::ones({2}), b = torch::ones({2});
  WeightVersions versions({a, b});
  const Version held = versions.newest();
  versions.begin_update(0, 1);
  a.add_(1);
  versions.begin_update(1, 2);
  b.add_(1);
  EXPECT_EQ(versions.newest()->number, 2);
  for (const torch::Tensor& value : held->tensors) EXPECT_TRUE(value.equal(torch::ones({2})));
  EXPECT_TRUE(a.equal(torch::full({2}, 2.0F)) && b.equal(torch::full({2}, 2.0F)));
}

}  // namespace
}  // namespace stormo::train
