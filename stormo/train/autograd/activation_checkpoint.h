#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <torch/types.h>

#include <stormo/model/chain.h>

namespace stormo::train {

/// function(input), of which backward keeps the input only: it computes the rest a second time when
/// it gets there, and frees it at once (T. Chen et al., Training Deep Nets with Sublinear Memory
/// Cost, 2016). For part of a model at a time, e.g. the attention of a block.
///
/// Gradients and losses are those without it, bit for bit: the second run starts from the first
/// one's state of libtorch's CPU generator, so that dropout agrees, and of autocast. Any gradients
/// that `function` needs beyond those of `input` must be of leaves, such as parameters. It must do
/// the same in both runs; running statistics, as of BatchNorm, are updated twice.
///
/// Where no gradients are recorded this is function(input). Works under DistributedDataParallel,
/// and inside units of FullyShardedDataParallel. Backward throws Error under create_graph and in
/// torch::autograd::grad(). The generator is one for the process: no other thread may draw from it
/// in a second run. Cost: a second forward, and 5 KB for the generator's state.
torch::Tensor checkpoint(std::function<torch::Tensor(torch::Tensor)> function,
                         const torch::Tensor& input);

/// For a loop of one's own, as parallel::recompute() is for the Trainer:
/// chain->forward(x) in groups of `segments_per_group` Segments, all but the last by checkpoint();
/// 0: about the square root of their number. For n Segments in groups of k, whose activations take
/// A bytes each, activations take (n/k + k) A at the peak in place of n A.
torch::Tensor checkpointed_forward(const std::shared_ptr<model::Chain>& chain, torch::Tensor x,
                                   std::size_t segments_per_group = 0);

}  // namespace stormo::train
