#pragma once

#include <torch/types.h>

namespace stormo::model {

/// Standard deviation of a transformer's first weights, as in GPT-2.
inline constexpr double kTransformerStddev = 0.02;

/// Weights drawn from N(0, stddev^2).
inline torch::Tensor normal(at::IntArrayRef sizes, double stddev = kTransformerStddev) {
  return torch::randn(sizes).mul_(stddev);
}

/// Layer normalisation over the last dimension with a gain and no bias.
inline torch::Tensor layer_norm(const torch::Tensor& x, const torch::Tensor& gain) {
  return at::layer_norm(x, gain.sizes(), gain, {}, 1e-5);
}

}  // namespace stormo::model
