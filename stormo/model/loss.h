#pragma once

#include <cstdint>

#include <torch/types.h>

#include <stormo/tensor/split.h>

namespace stormo::model {

/// Mean cross entropy of `logits` [..., classes] against `target` [...] (int64), over all
/// positions: the samples of a classifier ([B, C] and [B]) as well as the tokens of a text ([B, T,
/// V], [B, T]).
torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target);

/// The same where each of `ranks` has the logits of its share of `classes` (plan::share()), as the
/// head of a Gpt computes them: [..., share]. Equal on all ranks; collectives add up three numbers
/// for each position. With null, cross_entropy().
torch::Tensor split_cross_entropy(const torch::Tensor& logits, const torch::Tensor& target,
                                  std::int64_t classes, const tensor::SplitGroup* ranks);

/// Mean of the squares of `output` [B, 1] minus `target` [B].
torch::Tensor mean_squared_error(const torch::Tensor& output, const torch::Tensor& target);

/// Number of positions where the largest logit is that of the target.
std::int64_t count_correct(const torch::Tensor& logits, const torch::Tensor& target);

}  // namespace stormo::model
