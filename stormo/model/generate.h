#pragma once

#include <cstdint>

#include <stormo/base/rng.h>
#include <stormo/model/gpt.h>

namespace stormo::model {

struct SamplingOptions {
  double temperature = 1.0;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;    ///< sample among so many likeliest tokens only; 0: among all
};

/// `prompt` (int64, one dimension, at least one token) and `count` more tokens drawn from the
/// model; the last `context` tokens are what the model sees. The draws come from `rng` alone.
torch::Tensor generate(Gpt& model, const torch::Tensor& prompt, std::int64_t count,
                       const SamplingOptions& options, Rng& rng);

}  // namespace stormo::model
