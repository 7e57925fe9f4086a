#include <stormo/train/server_store/local_copy.h>

#include <utility>

namespace stormo::train {

void LocalCopy::step(const std::vector<NamedParameter>& parameters,
                     const std::vector<torch::Tensor>& gradients, const StepRate& rate) {
  const torch::NoGradGuard no_grad;
  sums_.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor& gradient = gradients[i];
    if (!gradient.defined()) continue;
    torch::Tensor weights = parameters[i].tensor;
    weights.add_(gradient, -rate.lr * rate.gradient_scale);
    if (sums_[i].defined()) {
      sums_[i].add_(gradient, rate.gradient_scale);
    } else {
      sums_[i] = gradient * rate.gradient_scale;
    }
  }
}

std::vector<torch::Tensor> LocalCopy::take() { return std::exchange(sums_, {}); }

}  // namespace stormo::train
