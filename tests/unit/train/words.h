#pragma once

#include <cstdint>
#include <span>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <stormo/data/dataset.h>

namespace stormo::test {

inline constexpr std::int64_t kWords = 50, kUsedWords = 20, kWordWidth = 4;

/// A model with a table of sparse gradients.
struct Words : torch::nn::Module {
  Words()
      : table(torch::nn::EmbeddingOptions(kWords, kWordWidth).sparse(true)), out(kWordWidth, 1) {
    register_module("table", table);
    register_module("out", out);
  }
  torch::nn::Embedding table;
  torch::nn::Linear out;
};

/// Three words a sample, of the first kUsedWords; targets of type `type`.
class WordsDataset final : public data::Dataset {
 public:
  explicit WordsDataset(torch::ScalarType type) : type_(type) {}
  std::int64_t size() const override { return 96; }
  data::Batch get(std::span<const std::int64_t> indices, std::int64_t) const override {
    torch::Tensor words =
        torch::empty({static_cast<std::int64_t>(indices.size()), 3}, torch::kInt64);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      for (int k = 0; k < 3; ++k)
        words[static_cast<std::int64_t>(i)][k] = (indices[i] * 7 + 3 * k) % kUsedWords;
    }
    return {words, words.to(type_).sum(1, true) / 60};
  }

 private:
  torch::ScalarType type_;
};

}  // namespace stormo::test
