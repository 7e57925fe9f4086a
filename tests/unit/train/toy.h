#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <stormo/data/dataset.h>
#include <stormo/model/loss.h>
#include <stormo/train/task.h>

#include "tests/unit/train/seeded.h"

// A small classification problem, and a module whose middle weight is exactly as large as a
// gradient must be to be reduced in place (128 x 64 float64 = 64 KiB).
namespace stormo::test {

struct ToyModule : torch::nn::Module {
  explicit ToyModule(double dropout = 0)
      : first(register_module("first", torch::nn::Linear(20, 128))),
        middle(register_module("middle", torch::nn::Linear(128, 64))),
        last(register_module("last", torch::nn::Linear(64, 3))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::tanh(middle(drop(torch::tanh(first(x))))));
  }
  torch::nn::Linear first, middle, last;
  torch::nn::Dropout drop;
};

inline std::shared_ptr<ToyModule> make_toy_module(std::uint64_t seed, double dropout = 0) {
  const Seeded seeded(seed);
  return std::make_shared<ToyModule>(dropout);
}

/// Rows of two tensors.
class RowsDataset : public data::Dataset {
 public:
  RowsDataset(torch::Tensor inputs, torch::Tensor targets)
      : inputs_(std::move(inputs)), targets_(std::move(targets)) {}
  std::int64_t size() const override { return inputs_.size(0); }
  data::Batch get(std::span<const std::int64_t> indices, std::int64_t) const override {
    const torch::Tensor index =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
    return {inputs_.index_select(0, index), targets_.index_select(0, index)};
  }
  /// The targets, where there is one for each row.
  data::SampleLabels strata() const override {
    if (targets_.dim() != 1) return {};
    const auto* first = targets_.const_data_ptr<std::int64_t>();
    return std::vector<std::int32_t>(first, first + size());
  }

 private:
  torch::Tensor inputs_, targets_;
};

/// Numbers that depend on the shape alone.
inline torch::Tensor toy_numbers(at::IntArrayRef shape) {
  return torch::randn(shape, at::make_generator<at::CPUGeneratorImpl>(99), torch::kFloat64);
}

/// Points whose class is a function of their first coordinates.
class ToyDataset : public RowsDataset {
 public:
  explicit ToyDataset(std::int64_t samples) : ToyDataset(toy_numbers({samples, 20})) {}

 private:
  explicit ToyDataset(const torch::Tensor& points)
      : RowsDataset(points, (points.select(1, 0) > 0).to(torch::kInt64) +
                                (points.select(1, 1) > 0.5).to(torch::kInt64)) {}
};

inline train::Task toy_task(const std::shared_ptr<ToyModule>& module) {
  train::Task task;
  task.module = module;
  task.forward = [module](const torch::Tensor& x) { return module->forward(x); };
  task.loss = model::cross_entropy;
  task.correct = model::count_correct;
  return task;
}

}  // namespace stormo::test
