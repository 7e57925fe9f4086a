#pragma once

#include <mutex>
#include <span>
#include <vector>

#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <stormo/comm/communicator.h>
#include <stormo/plan/model/model_shape.h>
#include <stormo/plan/project.h>
#include <stormo/tensor/grid.h>

// Layers that several ranks compute together, each with its slices of their parameters (tensor
// parallelism). M. Shoeybi et al., "Megatron-LM: training multi-billion parameter language models
// using model parallelism", 2019. Outside of these layers each rank may have a part of the
// positions (sequence parallelism). V. Korthikanti et al., "Reducing activation recomputation in
// large transformer models", 2022.
namespace stormo::tensor {

/// The ranks that compute layers together: a group over plan::kTensorAxis.
class TensorParallelGroup {
 public:
  /// `ranks` is borrowed.
  explicit TensorParallelGroup(comm::Communicator& ranks, bool sequence_parallel = false)
      : ranks_(&ranks), part_{ranks.rank(), ranks.size()}, sequence_parallel_(sequence_parallel) {}
  /// One rank of `parts` by itself, with the largest slices: its sums are its own terms, and it has
  /// its own positions in place of those of others. To measure what such a rank computes and keeps.
  static TensorParallelGroup alone(int parts, bool sequence_parallel = false) {
    return TensorParallelGroup(parts, sequence_parallel);
  }

  const plan::Part& part() const { return part_; }
  /// Whether each rank has a part of the positions where layers are not split: of T positions, rank
  /// i of t has T/t consecutive ones, from number i T/t.
  bool sequence_parallel() const { return sequence_parallel_; }
  /// This rank's share of `units`.
  plan::Share share(std::int64_t units) const {
    return plan::share(units, part_.parts, part_.index);
  }
  /// The ranks as those that have parts of the rows of a map.
  Line line() const { return ranks_ == nullptr ? Line::alone(part_.parts) : Line(*ranks_); }
  /// A collective: reduces a contiguous tensor over all ranks, in place. Blocks. Throws Error.
  void all_reduce(const torch::Tensor& x, comm::ReduceOp op) const;
  /// A collective: a contiguous tensor becomes that of `root`. Blocks. Throws Error.
  void broadcast(const torch::Tensor& x, int root) const;
  /// A collective: all positions, [B, T, ...], of those of each rank, [B, T / t, ...]. Blocks.
  /// Throws Error.
  torch::Tensor all_gather(const torch::Tensor& x) const;
  /// A collective: this rank's positions, [B, T / t, ...], of the sum of all ranks' [B, T, ...],
  /// whose values are lost. Blocks. Throws Error, and c10::ValueError unless t divides T.
  torch::Tensor reduce_scatter(const torch::Tensor& x) const;

 private:
  TensorParallelGroup(int parts, bool sequence_parallel)
      : part_{parts - 1, parts}, sequence_parallel_(sequence_parallel) {}

  comm::Communicator* ranks_ = nullptr;  // null: alone
  plan::Part part_;
  bool sequence_parallel_ = false;
};

/// Where ranks begin to compute different parts from `x`, which is equal on all of them. Returns
/// `x`; in backward, a collective adds up the ranks' terms of its gradient. With sequence
/// parallelism each rank has its positions of `x` in dimension 1; a collective gathers all of them,
/// and in backward each rank gets the sum for its own. With null, does nothing.
torch::Tensor begin_split(const torch::Tensor& x, const TensorParallelGroup* ranks);

/// Where they end: a collective adds up the ranks' terms. The sum is in the memory of `x`, which
/// must be contiguous; autograd refuses a backward that still needs the values of `x`. In backward
/// the gradient goes to each rank as it is. With sequence parallelism each rank gets the sum for
/// its positions, in memory of its own, and in backward a collective gathers the gradient of all
/// positions. With null, returns `x`.
torch::Tensor end_split(const torch::Tensor& x, const TensorParallelGroup* ranks);

/// A copy of what `part` has of a whole parameter.
torch::Tensor slice(const torch::Tensor& whole, const plan::Split& split, const plan::Part& part);
/// The whole of the slices of all parts, in their order.
torch::Tensor join(const std::vector<torch::Tensor>& slices, const plan::Split& split);

/// While it lives, random numbers differ between the ranks of a group: for what is drawn between
/// begin_split() and end_split(), as the dropout of a hidden layer. Elsewhere ranks draw the same
/// numbers, and must. Costs a copy of the generator's state, 5 KB. With null, does nothing.
class SplitRandom {
 public:
  explicit SplitRandom(const TensorParallelGroup* ranks);
  ~SplitRandom();
  SplitRandom(const SplitRandom&) = delete;
  SplitRandom& operator=(const SplitRandom&) = delete;

 private:
  torch::Tensor outside_;  // state of the generator; undefined: nothing to restore
};

}  // namespace stormo::tensor
