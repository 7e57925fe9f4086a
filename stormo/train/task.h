#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <torch/nn/module.h>

#include <stormo/data/dataset.h>
#include <stormo/plan/step_plan.h>

namespace stormo::train {

/// What is trained: a module and how a batch becomes a loss.
struct Task {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor& input)> forward;
  /// Mean over the samples of the batch: scalar, differentiable.
  std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& target)> loss;
  /// Number of right answers, where that has a meaning.
  std::function<std::int64_t(const torch::Tensor& output, const torch::Tensor& target)> correct;
  /// Targets are numbers, in units of so much: evaluation says how far the outputs [B, 1] are off.
  std::optional<double> target_unit;
  /// A sample to show at the end (generated text); rank 0 only.
  std::function<std::string()> sample;
  /// The 16-bit type in which training computes what loses little by it; see Autocast. With kHalf
  /// the loss is scaled, see GradScaler.
  std::optional<torch::ScalarType> autocast;
  /// Segments, for plans; default: those of a model::Chain, else the whole module is one. A Chain's
  /// own are taken where they hold all of its parameters.
  std::optional<plan::ModelShape> shape;
};

/// A held-out part of the data, evaluated on all ranks (every sample exactly once).
struct EvalSplit {
  std::string name;  ///< "validation", "test"
  std::shared_ptr<const data::Dataset> dataset;
  std::int64_t batch = 256;  ///< samples per forward pass
};

}  // namespace stormo::train
