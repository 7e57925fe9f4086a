#include <stormo/model/loss.h>

namespace stormo::model {

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), target.reshape({-1}));
}

torch::Tensor mean_squared_error(const torch::Tensor& output, const torch::Tensor& target) {
  return at::mse_loss(output.reshape({-1}), target);
}

std::int64_t count_correct(const torch::Tensor& logits, const torch::Tensor& target) {
  return logits.argmax(-1).eq(target).sum().item<std::int64_t>();
}

}  // namespace stormo::model
