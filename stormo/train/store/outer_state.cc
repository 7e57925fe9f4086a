#include <stormo/train/store/outer_state.h>

#include <cstddef>
#include <string>

namespace stormo::train {

OuterState::OuterState(const parallel::OuterOptimizer& rule, FusedOptimizer& optimizer)
    : rule_(with_defaults(rule)), optimizer_(optimizer) {
  const std::string wrong = wrong_with(rule);
  if (!wrong.empty()) throw Error(invalid_argument("the outer optimizer " + wrong));
  optimizer_.keep_outer_momentum();
}

void OuterState::before_update(double lr) {
  lr_ = lr;
  if (begun_) return;
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> weights = optimizer_.values().weights;
  began_with_.resize(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (began_with_[i].defined()) {
      began_with_[i].copy_(weights[i]);
    } else {
      began_with_[i] = weights[i].detach().clone();
    }
  }
  begun_ = true;
}

// x - lr * (g + step) is written as mean + (1 - lr) * g - lr * step: with lr 1 and no momentum it
// is the mean, bit for bit. Where the learning rate is 0, u keeps its value: it is a sum of
// gradients, and g has none.
void OuterState::update() {
  const torch::NoGradGuard no_grad;
  const bool nesterov = rule_.kind == parallel::OuterOptimizer::Kind::kNesterov;
  FusedOptimizer::Values values = optimizer_.values();
  for (std::size_t i = 0; i < values.weights.size(); ++i) {
    torch::Tensor& weights = values.weights[i];
    torch::Tensor momentum = values.outer_momentum[i].view_as(weights);
    torch::Tensor g = has_moved_ ? began_with_[i].sub_(weights) : torch::zeros_like(weights);
    if (nesterov) momentum.mul_(rule_.momentum).add_(g);
    const double factor = nesterov ? rule_.momentum : rule_.momentum * lr_;
    weights.sub_(momentum.mul(rule_.lr * factor));
    if (!nesterov) momentum.mul_(rule_.momentum);
    if (!nesterov && lr_ > 0) momentum.add_(g.div(lr_));
    weights.add_(g.mul_(1 - rule_.lr));
  }
  optimizer_.round_masters();
}

}  // namespace stormo::train
