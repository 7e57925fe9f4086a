#pragma once

#include <cstdint>

#include <stormo/model/chain.h>

namespace stormo::model {

/// Sizes of a Gpt; all positive, width divisible by heads.
struct GptOptions {
  std::int64_t vocabulary = 256;
  std::int64_t context = 64;  ///< longest input
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t width = 128;
  bool tied = true;  ///< the head uses the token embedding's weight
};

/// Decoder-only transformer in the form of GPT-2 (Radford et al. 2019): pre-norm blocks of causal
/// attention and a 4x GELU MLP, learned positions, no biases, no dropout.
/// Segments: "embedding", "block0" ..., "head". Input [B, T] int64 with T <= context, output
/// [B, T, vocabulary] logits.
///
/// With tied weights the shared parameter belongs to the embedding alone: it is listed once, and
/// its gradient is complete only after the backward of both head and embedding.
class Gpt : public Chain {
 public:
  explicit Gpt(const GptOptions& options);
  const GptOptions& options() const { return options_; }

 private:
  GptOptions options_;
};

}  // namespace stormo::model
