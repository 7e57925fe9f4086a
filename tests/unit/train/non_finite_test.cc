#include <stormo/train/step/non_finite.h>

#include <limits>

#include <gtest/gtest.h>

#include <stormo/model/loss.h>
#include <stormo/model/mlp.h>

#include "toy.h"

namespace stormo::train {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();

/// A chain whose batch, parameters and target a test can spoil, with what is found then.
struct Spoilt {
  std::shared_ptr<model::Mlp> chain =
      std::make_shared<model::Mlp>(std::vector<std::int64_t>{4, 6, 5, 3});
  data::Batch batch{torch::ones({2, 4}), torch::ones({2, 3})};

  Task task() const {
    Task task;
    task.module = chain;
    task.forward = [chain = chain](const torch::Tensor& x) { return chain->forward(x); };
    task.loss = [](const torch::Tensor& output, const torch::Tensor& target) {
      return torch::mse_loss(output, target);
    };
    return task;
  }
  torch::Tensor parameter(std::size_t i) { return chain->parameters()[i].data(); }
  std::string found() const { return first_non_finite(task(), batch); }
};

TEST(NonFinite, NamesTheFirstPlaceOfAPass) {
  Spoilt s;
  EXPECT_EQ(s.found(), "the loss");  // everything before it is finite
  s.batch.target[1][2] = kNan;
  EXPECT_EQ(s.found(), "the target");
  const auto shape = s.chain->shape();
  // finite numbers whose products are not
  s.parameter(2).fill_(1e30);
  s.parameter(0).fill_(1e10);
  EXPECT_EQ(s.found(), "the output of segment '" + shape.segments[1].name + "'");
  s.parameter(0).fill_(3e38);
  EXPECT_EQ(s.found(), "the output of segment '" + shape.segments[0].name + "'");
  s.parameter(4)[1][1] = -std::numeric_limits<float>::infinity();
  const std::string name = s.chain->named_parameters().keys()[4];
  EXPECT_EQ(s.found(), "parameter '" + name + "'");
  s.batch.input[0][3] = kNan;
  EXPECT_EQ(s.found(), "the input");
}

// What is finite in float32 is not in the 16 bits that the pass computed in.
TEST(NonFinite, ComputesAsThePassDid) {
  Spoilt s;
  s.parameter(0).fill_(3e4);
  Task task = s.task();
  EXPECT_EQ(first_non_finite(task, s.batch), "the loss");
  task.autocast = torch::kHalf;
  EXPECT_EQ(first_non_finite(task, s.batch), "the output of segment 'layer0'");
}

TEST(NonFinite, LooksAtAModuleWithoutSegmentsAsAWhole) {
  const auto module = test::make_toy_module(3);
  const data::Batch batch{torch::full({2, 20}, 1e200, torch::kFloat64), torch::ones({2})};
  module->first->weight.data().fill_(1e200);  // tanh makes it finite again
  EXPECT_EQ(first_non_finite(test::toy_task(module), batch), "the loss");
  module->last->weight.data().fill_(1e308);
  module->last->bias.data().fill_(1e308);
  EXPECT_EQ(first_non_finite(test::toy_task(module), batch), "the output of the model");
}

TEST(NonFinite, SaysOfPartsWhatOneRankCanSee) {
  const data::Batch batch{torch::ones({2, 4}), torch::ones({2})};
  const torch::Tensor bad = torch::full({2, 3}, kNan), good = torch::zeros({2, 3});
  std::vector<TensorPiece> parts = {
      {.name = "0.weight", .shape = {6}, .begin = 2, .end = 4, .values = torch::ones({2})}};
  EXPECT_EQ(first_non_finite(parts, batch, good), "the loss");
  EXPECT_EQ(first_non_finite(parts, batch, bad),
            "the output of the model, or what other ranks hold of it");
  parts[0].values[1] = kNan;
  EXPECT_EQ(first_non_finite(parts, batch, bad), "this rank's part of '0.weight'");
  EXPECT_EQ(first_non_finite(parts, {bad, batch.target}, bad), "the input");
}

}  // namespace
}  // namespace stormo::train
