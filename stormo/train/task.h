#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <torch/nn/module.h>

#include <stormo/data/dataset.h>
#include <stormo/plan/step_plan.h>
#include <stormo/tensor/split.h>

namespace stormo::train {

/// What is trained: a module, its forward, and the loss of a batch.
struct Task {
  std::shared_ptr<torch::nn::Module> module;
  /// Where ranks have parts of a model::Chain, its segments are called instead: it is to be
  /// Chain::forward() there.
  std::function<torch::Tensor(const torch::Tensor& input)> forward;
  /// Mean over the samples of the batch: scalar, differentiable.
  std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& target)> loss;
  /// The same, where each of `ranks` has a part of the output, as of the head of a Gpt
  /// (model::split_cross_entropy()), or where one of them has the targets (model::owned_loss()),
  /// which are undefined on others: equal on all of them. Empty: there is no such loss.
  std::function<torch::Tensor(const torch::Tensor& part, const torch::Tensor& target,
                              const tensor::TensorParallelGroup& ranks)>
      split_loss;
  /// Number of correct predictions; empty if that has no meaning.
  std::function<std::int64_t(const torch::Tensor& output, const torch::Tensor& target)> correct;
  /// Set when targets are numbers: one unit of the output in units of the data. Evaluation then
  /// reports errors of the outputs, of shape [B, 1].
  std::optional<double> target_unit;
  /// Returns a sample to show at the end (generated text); called on rank 0 only. Where ranks have
  /// parts of the model, all have one or none.
  std::function<std::string()> sample;
  /// The 16-bit type of mixed precision training, see Autocast; empty: none. With kHalf the loss is
  /// scaled, see GradScaler.
  std::optional<torch::ScalarType> autocast;
  /// The segments, for plans. Default: those of a model::Chain, if they have all of its parameters;
  /// else the whole module is one segment.
  std::optional<plan::ModelShape> shape;
};

/// A held-out split of the data, evaluated by all ranks together (every sample exactly once).
struct EvalSplit {
  std::string name;  ///< "validation", "test"
  std::shared_ptr<const data::Dataset> dataset;
  std::int64_t batch = 256;  ///< samples per forward pass
};

}  // namespace stormo::train
