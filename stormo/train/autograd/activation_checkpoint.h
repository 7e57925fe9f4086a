#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <torch/types.h>

#include <stormo/model/chain.h>

namespace stormo::train {

/// Returns function(input), but keeps only the input for backward. Backward calls `function` again
/// (recomputation) and frees its activations after use (T. Chen et al., Training Deep Nets with
/// Sublinear Memory Cost, 2016). Use it for a part of a model, e.g. the attention of a block.
///
/// Gradients and losses have the same bits as without it: the second call starts with the same
/// state of libtorch's CPU generator, so that dropout is the same, and of autocast. Apart from
/// `input`, only leaves such as parameters may require gradients in `function`. It must compute the
/// same in both calls. Side effects happen twice: BatchNorm updates its running statistics twice.
///
/// If no gradients are recorded this is just function(input). Works with DistributedDataParallel,
/// and inside units of FullyShardedDataParallel. Backward throws Error with create_graph and in
/// torch::autograd::grad(). There is one generator per process: no other thread may use it during a
/// second call. Cost: a second forward, and 5 KB for the generator's state.
torch::Tensor checkpoint(std::function<torch::Tensor(torch::Tensor)> function,
                         const torch::Tensor& input);

/// For a user's own loop; the Trainer uses parallel::recompute(). Computes chain->forward(x) in
/// groups of `segments_per_group` Segments, all but the last by checkpoint(); 0: about the square
/// root of their number. For n Segments in groups of k, with activations of A bytes each, the peak
/// is (n/k + k) A bytes of activations instead of n A.
torch::Tensor checkpointed_forward(const std::shared_ptr<model::Chain>& chain, torch::Tensor x,
                                   std::size_t segments_per_group = 0);

}  // namespace stormo::train
