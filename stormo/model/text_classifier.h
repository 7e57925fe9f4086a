#pragma once

#include <cstdint>

#include <stormo/model/chain.h>

namespace stormo::model {

/// Sizes of a TextClassifier; all positive but layers, width divisible by heads.
struct TextClassifierOptions {
  std::int64_t vocabulary = 20000;  ///< ids of words, 0 being padding
  std::int64_t classes = 2;
  std::int64_t width = 64;
  std::int64_t layers = 0;  ///< of the encoder; 0: a bag of words
  std::int64_t heads = 4;
  std::int64_t context = 64;  ///< longest text; with layers > 0
  /// layers = 0: the words' vectors are a torch::nn::EmbeddingBag with sparse(true), "token.weight"
  /// instead of "token".
  bool sparse = false;
};

/// Classifies texts. Input [B, T] int64: ids of words, where 0 is padding; padding does not change
/// the result. Every text must have at least one word. Output [B, classes] logits.
///
/// layers = 0: the mean of the words' vectors and a linear layer (Joulin et al., "Bag of tricks for
/// efficient text classification", 2017); Segments "embedding" and "head". layers > 0: a
/// transformer encoder between them, pre-norm blocks as in Gpt with attention over the whole text;
/// Segments "embedding", "block0" ..., "head". Between these, activations are [B, T, width + 1]:
/// the last channel is 1 for words and 0 for padding.
class TextClassifier : public Chain {
 public:
  explicit TextClassifier(const TextClassifierOptions& options);
};

}  // namespace stormo::model
