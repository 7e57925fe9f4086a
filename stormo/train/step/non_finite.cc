#include <stormo/train/step/non_finite.h>

#include <optional>

#include <stormo/model/chain.h>
#include <stormo/train/autograd/precision.h>

namespace stormo::train {
namespace {

bool is_finite(const torch::Tensor& t) {
  return !t.defined() || !t.is_floating_point() || torch::isfinite(t).all().item<bool>();
}

}  // namespace

std::string first_non_finite(const Task& task, const data::Batch& batch) {
  const torch::NoGradGuard no_grad;
  if (!is_finite(batch.input)) return "the input";
  for (const auto& p : task.module->named_parameters()) {
    if (!is_finite(p.value())) return "parameter '" + p.key() + "'";
  }
  std::optional<Autocast> autocast;
  if (task.autocast) autocast.emplace(batch.input.device().type(), *task.autocast);
  torch::Tensor x = batch.input;
  if (const auto chain = std::dynamic_pointer_cast<model::Chain>(task.module)) {
    const plan::ModelShape shape = chain->shape();
    for (std::size_t i = 0; i < chain->segments().size(); ++i) {
      x = chain->segments()[i]->forward(x);
      if (!is_finite(x)) return "the output of segment '" + shape.segments[i].name + "'";
    }
  } else {
    x = task.forward(x);
    if (!is_finite(x)) return "the output of the model";
  }
  return is_finite(batch.target) ? "the loss" : "the target";
}

std::string first_non_finite(const std::vector<TensorPiece>& parts, const data::Batch& batch,
                             const torch::Tensor& output) {
  const torch::NoGradGuard no_grad;
  if (!is_finite(batch.input)) return "the input";
  for (const TensorPiece& part : parts) {
    if (!is_finite(part.values)) return "this rank's part of '" + part.name + "'";
  }
  if (!is_finite(output)) return "the output of the model, or what other ranks hold of it";
  return is_finite(batch.target) ? "the loss" : "the target";
}

}  // namespace stormo::train
