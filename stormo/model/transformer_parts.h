#pragma once

#include <cstdint>

#include <torch/types.h>

#include <stormo/model/chain.h>

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

/// How ranks cut a block of attention and an MLP of four times its width: attention by heads.
inline SplitForm split_of_block(std::int64_t heads, std::int64_t width, std::int64_t context) {
  const std::int64_t output = context * width;
  return {.parameters = {{"qkv", {.blocks = 3, .units = heads}},
                         {"projection", {.dim = 1, .units = heads}},
                         {"up", {.units = 4 * width}},
                         {"down", {.dim = 1, .units = 4 * width}}},
          .heads = static_cast<int>(heads),
          .sums = {.forward = {output, output}, .backward = {output, output}, .loss = {}}};
}

/// The rows `ids` of a table of `rows` rows, of which each of `ranks` has a slice; null: the whole.
inline torch::Tensor embed(const torch::Tensor& table, const torch::Tensor& ids, std::int64_t rows,
                           const tensor::TensorParallelGroup* ranks) {
  if (ranks == nullptr) return at::embedding(table, ids);
  const plan::Share mine = ranks->share(rows);
  const torch::Tensor elsewhere = ids.lt(mine.begin).logical_or_(ids.ge(mine.end));
  const torch::Tensor local = (ids - mine.begin).masked_fill_(elsewhere, 0);
  return tensor::end_split(at::embedding(table, local).masked_fill(elsewhere.unsqueeze(-1), 0),
                           ranks);
}

}  // namespace stormo::model
