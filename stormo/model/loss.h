#pragma once

#include <cstdint>
#include <functional>

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
                                  std::int64_t classes, const tensor::TensorParallelGroup* ranks);

/// The loss of an `output` [B, C] that all of `ranks` have, of targets that only `owner` has: there
/// `loss` computes it, a mean over samples; others do not call it. Equal on all ranks, with the
/// gradient: a collective sends C + 1 numbers for each sample from `owner` to the others.
torch::Tensor owned_loss(const torch::Tensor& output,
                         const std::function<torch::Tensor(const torch::Tensor& output)>& loss,
                         const tensor::TensorParallelGroup& ranks, int owner);

/// Mean of the squares of `output` [B, 1] minus `target` [B].
torch::Tensor mean_squared_error(const torch::Tensor& output, const torch::Tensor& target);

/// Number of positions where the largest logit is that of the target.
std::int64_t count_correct(const torch::Tensor& logits, const torch::Tensor& target);

}  // namespace stormo::model
