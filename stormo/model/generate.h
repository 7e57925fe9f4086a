#pragma once

#include <cstdint>

#include <stormo/base/rng.h>
#include <stormo/model/gpt.h>

namespace stormo::model {

struct SamplingOptions {
  double temperature = 1.0;  ///< 0: always the most likely token
  std::int64_t top_k = 0;    ///< sample only from this number of most likely tokens; 0: from all
};

/// Returns `prompt` (int64, one dimension, at least one token) and `count` generated tokens. The
/// input of the model is the last `context` tokens. All random numbers come from `rng`.
torch::Tensor generate(Gpt& model, const torch::Tensor& prompt, std::int64_t count,
                       const SamplingOptions& options, Rng& rng);

}  // namespace stormo::model
