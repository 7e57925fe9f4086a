#include <stormo/train/optimizer/frozen_adam.h>

#include <cmath>

#include <stormo/base/check.h>

namespace stormo::train {
namespace {

using torch::Tensor;

/// Of an update after so many: sqrt(v / correction) + epsilon.
Tensor denominators(const OptimizerOptions& o, const Tensor& v, std::int64_t updates) {
  const double correction = 1 - std::pow(o.beta2, static_cast<double>(updates));
  return v.div(correction).sqrt_().add_(o.epsilon);
}

bool decouples_decay(const OptimizerOptions& o) { return o.kind == OptimizerOptions::Kind::kAdamW; }

}  // namespace

FrozenAdam::FrozenAdam(FusedOptimizer& optimizer, std::int64_t updates)
    : optimizer_(optimizer), updates_(updates) {
  const OptimizerOptions& o = optimizer.options();
  if (o.kind != OptimizerOptions::Kind::kAdam && !decouples_decay(o)) {
    throw Error(invalid_argument("only adam and adamw have a mean of squares that can be frozen"));
  }
  for (const NamedParameter& p : optimizer.parameters()) {
    if (p.tensor.element_size() != 2) continue;
    throw Error(invalid_argument(
        "parameter '" + p.name +
        "' is of 16 bits, and its momentum would be rounded to them in every step; keep parameters "
        "in float32, or leave out the step after which the mean of squares is frozen"));
  }
}

// Gradients that autograd leaves may share memory with others, and stay as they are.
void FrozenAdam::prepare_gradients(std::size_t first, std::size_t last) {
  const torch::NoGradGuard no_grad;
  const OptimizerOptions& o = optimizer_.options();
  const std::vector<std::int64_t> updates = optimizer_.steps();
  const FusedOptimizer::Values values = optimizer_.values();
  for (std::size_t i = first; i < last; ++i) {
    if (updates[i] < updates_) continue;
    const Tensor& p = optimizer_.parameters()[i].tensor;
    const Tensor m = values.slots[0][i].view(p.sizes()), v = values.slots[1][i].view(p.sizes());
    Tensor gradient = p.grad().defined() ? p.grad() : torch::zeros_like(m);
    if (!decouples_decay(o) && o.weight_decay != 0) gradient = gradient.add(p, o.weight_decay);
    p.mutable_grad() =
        gradient.lerp(m, o.beta1).div_(denominators(o, v, updates[i])).masked_fill_(v == 0, 0);
  }
}

Status FrozenAdam::step(const StepRate& rate, std::size_t first, std::size_t last) {
  const torch::NoGradGuard no_grad;
  const std::vector<std::int64_t> updates = optimizer_.steps();
  const FusedOptimizer::Values values = optimizer_.values();
  for (std::size_t i = first; i < last;) {
    std::size_t by_rule = i;
    while (by_rule < last && updates[by_rule] < updates_) ++by_rule;
    if (by_rule > i) {
      STORMO_RETURN_IF_ERROR(optimizer_.step(rate, i, by_rule));
      i = by_rule;
      continue;
    }
    STORMO_CHECK(rate.gradient_scale == 1, "what ranks average in place of gradients is scaled");
    update(rate.lr, i, updates[i], values);
    ++i;
  }
  return {};
}

// Codes leave something of numbers that are 0, too.
void FrozenAdam::update(double lr, std::size_t i, std::int64_t updates,
                        const FusedOptimizer::Values& values) const {
  const OptimizerOptions& o = optimizer_.options();
  const Tensor& p = optimizer_.parameters()[i].tensor;
  if (!p.grad().defined()) return;
  const Tensor v = values.slots[1][i].view(p.sizes());
  const Tensor average = p.grad().masked_fill(v == 0, 0);
  values.slots[0][i].view(p.sizes()).copy_(denominators(o, v, updates).mul_(average));
  Tensor weights = p.detach();
  if (decouples_decay(o)) weights.mul_(1 - lr * o.weight_decay);
  weights.add_(average, -lr / (1 - std::pow(o.beta1, static_cast<double>(updates))));
}

}  // namespace stormo::train
