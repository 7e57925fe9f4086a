#include <stormo/train/evaluation/evaluate.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <stormo/data/tensor_dataset.h>

namespace stormo::train {
namespace {

/// Of a model that says `guesses` where the targets are `targets`.
Evaluation evaluate_guesses(const std::vector<double>& guesses, const std::vector<double>& targets,
                            std::int64_t batch) {
  const auto data = data::TensorDataset::create(
      torch::tensor(guesses, torch::kFloat64).unsqueeze(1), torch::tensor(targets, torch::kFloat64),
      torch::kFloat64, data::TensorDataset::Targets::kNumbers);
  Task task;
  task.module = torch::nn::Linear(1, 1).ptr();
  task.forward = [](const torch::Tensor& x) { return x; };
  task.loss = [](const torch::Tensor& output, const torch::Tensor& target) {
    return (output.reshape({-1}) - target).square().mean();
  };
  task.target_unit = 1;
  const auto alone = comm::make_inproc_group(1).take_or_throw();
  const EvalSplit split{.name = "test", .dataset = *data, .batch = batch};
  return evaluate(*alone.front(), task, split).take_or_throw();
}

TEST(Evaluate, R2IsThatOfTheDefinition) {
  const std::vector<double> targets = {1, 2, 4, 8, 9, 3}, guesses = {1.5, 2, 3, 8, 7, 3};
  for (const std::int64_t batch : {1, 2, 4, 6}) {
    for (const double far : {0.0, 1e9}) {  // squares of 1e18 hide a variance of 9
      std::vector<double> t = targets, g = guesses;
      for (double& number : t) number += far;
      for (double& number : g) number += far;
      // errors 0.25 + 1 + 4, squares around the mean 4.5: 53.5
      EXPECT_NEAR(evaluate_guesses(g, t, batch).r2.value(), 1 - 5.25 / 53.5, 1e-6) << batch;
    }
  }
}

TEST(Evaluate, R2OfAConstantIsOneOrZero) {
  for (const double constant : {0.1, 2.5, 0.0, -1e9 / 3}) {
    const std::vector<double> targets(7, constant);
    EXPECT_EQ(evaluate_guesses(targets, targets, 2).r2, 1) << constant;
    EXPECT_EQ(evaluate_guesses(std::vector<double>(7, constant + 1), targets, 2).r2, 0) << constant;
  }
}

}  // namespace
}  // namespace stormo::train
