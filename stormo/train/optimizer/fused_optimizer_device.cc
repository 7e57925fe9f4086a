// What a FusedOptimizer does by operations of libtorch: updates of parameters on a device other
// than the CPU, and of whole matrices.
#include <vector>

#include <ATen/ops/stack.h>

#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/optimizer/tensor_update.h>

namespace stormo::train {

std::vector<TensorGradient> FusedOptimizer::autograd_gradients(std::size_t first,
                                                               std::size_t last) const {
  std::vector<TensorGradient> out;
  for (std::size_t i = first; i < last; ++i) {
    const torch::Tensor& gradient = parameters_[i].tensor.grad();
    if (!gradient.defined() || numel(i) == 0) continue;
    const torch::Tensor all = gradient.is_sparse() ? gradient.to_dense() : gradient.detach();
    const bool whole = numel(i) == all.numel();
    out.push_back({i, whole ? all : all.flatten().slice(0, owned_[i].begin, owned_[i].end)});
  }
  return out;
}

/// Of one parameter, in the type in which it is updated; its state is made at its first step.
TensorUpdate FusedOptimizer::tensors_to_update(const TensorGradient& gradient) {
  const std::size_t i = gradient.parameter;
  create_state(i);
  const State& state = states_[i];
  TensorUpdate out;
  out.weights = owned_weights(i);
  if (state.master.defined()) out.weights = state.master.view_as(out.weights);
  out.gradient = gradient.values.to(out.weights.scalar_type()).reshape_as(out.weights);
  for (std::size_t s = 0; s < out.slots.size(); ++s) {
    if (state.slots[s].defined()) out.slots[s] = state.slots[s].view_as(out.weights);
  }
  return out;
}

Status FusedOptimizer::step_by_tensors(const StepRate& rate,
                                       std::span<const TensorGradient> gradients, std::size_t first,
                                       std::size_t last) {
  STORMO_RETURN_IF_ERROR(check_rule());
  const torch::NoGradGuard no_grad;
  std::vector<std::size_t> parameters;
  std::vector<TensorUpdate> updates;
  std::vector<optim::UpdateStep> steps;
  for (const TensorGradient& g : gradients) {
    if (numel(g.parameter) == 0) continue;
    parameters.push_back(g.parameter);
    updates.push_back(tensors_to_update(g));
    steps.push_back({.lr = rate.lr,
                     .number = ++states_[g.parameter].steps,
                     .gradient_scale = rate.gradient_scale});
  }
  if (optim::needs_norms(options_.kind)) {
    std::vector<torch::Tensor> sums;
    for (std::size_t k = 0; k < updates.size(); ++k) {
      sums.push_back(prepare(options_, steps[k], updates[k]));
    }
    std::vector<optim::SquareSums> mine(sums.size());
    const torch::Tensor read = sums.empty() ? torch::Tensor() : at::stack(sums).cpu();
    for (std::size_t k = 0; k < sums.size(); ++k) {
      const double* const of = read.const_data_ptr<double>() + 2 * k;
      mine[k] = {.weights = of[0], .direction = of[1]};
    }
    STORMO_ASSIGN_OR_RETURN(const std::vector<double> ratios,
                            trust_ratios(parameters, mine, first, last));
    for (std::size_t k = 0; k < steps.size(); ++k) steps[k].trust_ratio = ratios[k];
  }
  for (std::size_t k = 0; k < updates.size(); ++k) {
    train::update(rule_of(parameters[k]), steps[k], updates[k]);
    if (!states_[parameters[k]].master.defined()) continue;
    const torch::Tensor weights = owned_weights(parameters[k]);
    weights.copy_(updates[k].weights.view_as(weights));
  }
  return {};
}

double FusedOptimizer::squares_on_device(const std::function<bool(std::size_t)>& counts) const {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> sums;
  for (const TensorGradient& g : autograd_gradients(0, parameters_.size())) {
    if (counts(g.parameter)) sums.push_back(squares(g.values));
  }
  return sum_of(sums);
}

}  // namespace stormo::train
