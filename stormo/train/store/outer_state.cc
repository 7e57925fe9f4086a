#include <stormo/train/store/outer_state.h>

#include <algorithm>
#include <string>
#include <utility>

namespace stormo::train {

OuterState::OuterState(const parallel::OuterOptimizer& rule, FusedOptimizer& optimizer)
    : rule_(with_defaults(rule)),
      optimizer_(optimizer),
      began_with_(optimizer.parameters().size()),
      begun_(began_with_.size()),
      has_moved_(began_with_.size()) {
  const std::string wrong = wrong_with(rule);
  if (!wrong.empty()) throw Error(invalid_argument("the outer optimizer " + wrong));
  optimizer_.keep_outer_momentum();
}

void OuterState::before_update(double lr) {
  lr_ = lr;
  if (std::count(begun_.begin(), begun_.end(), false) == 0) return;
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> weights = optimizer_.values().weights;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (begun_[i]) continue;
    if (began_with_[i].defined()) {
      began_with_[i].copy_(weights[i]);
    } else {
      began_with_[i] = weights[i].detach().clone();
    }
    begun_[i] = true;
  }
}

std::vector<torch::Tensor> OuterState::period() const {
  const bool all = std::ranges::find(begun_, false) == begun_.end();
  return all ? began_with_ : std::vector<torch::Tensor>();
}

void OuterState::go_on(std::vector<torch::Tensor> period, double lr) {
  lr_ = lr;
  if (period.empty()) return;
  began_with_ = std::move(period);
  begun_.assign(began_with_.size(), true);
}

void OuterState::end_period(std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    has_moved_[i] = begun_[i];
    begun_[i] = false;
  }
}

void OuterState::update(std::size_t first, std::size_t last) {
  const torch::NoGradGuard no_grad;
  FusedOptimizer::Values values = optimizer_.values();
  for (std::size_t i = first; i < last; ++i) {
    update(i, has_moved_[i], values.outer_momentum[i], values.weights[i]);
  }
  optimizer_.round_masters();
}

void OuterState::update(std::span<const std::size_t> parameters, std::span<torch::Tensor> averages,
                        double mixing) {
  const torch::NoGradGuard no_grad;
  FusedOptimizer::Values values = optimizer_.values();
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    const std::size_t i = parameters[k];
    update(i, begun_[i], values.outer_momentum[i], averages[k]);
    began_with_[i].copy_(averages[k]);
    if (mixing == 0) {
      values.weights[i].copy_(averages[k]);
    } else if (mixing < 1) {
      values.weights[i].mul_(mixing).add_(averages[k], 1 - mixing);
    }
  }
  optimizer_.round_masters();
}

// x - lr * (g + step) is written as mean + (1 - lr) * g - lr * step: with lr 1 and no momentum it
// is the mean, bit for bit. Where the learning rate is 0, u keeps its value: it is a sum of
// gradients, and g has none.
void OuterState::update(std::size_t parameter, bool has_moved, const torch::Tensor& kept,
                        torch::Tensor& x) {
  const bool nesterov = rule_.kind == parallel::OuterOptimizer::Kind::kNesterov;
  torch::Tensor momentum = kept.view_as(x);
  torch::Tensor g = has_moved ? began_with_[parameter].sub_(x) : torch::zeros_like(x);
  if (nesterov) momentum.mul_(rule_.momentum).add_(g);
  const double factor = nesterov ? rule_.momentum : rule_.momentum * lr_;
  x.sub_(momentum.mul(rule_.lr * factor));
  if (!nesterov) momentum.mul_(rule_.momentum);
  if (!nesterov && lr_ > 0) momentum.add_(g.div(lr_));
  x.add_(g.mul_(1 - rule_.lr));
}

}  // namespace stormo::train
