#pragma once

#include <utility>
#include <vector>

#include <torch/types.h>

namespace stormo::train {

/// What the logical shards of one rank give, added up over the rank's part of their tree
/// (plan/logical_shards.h), shard by shard. Of gradients at most as many sums are kept as the tree
/// is high.
class ShardSums {
 public:
  /// For so many of them in each step. Of none there are no gradients, and the loss is 0.
  ShardSums(std::vector<torch::Tensor> parameters, int shards)
      : parameters_(std::move(parameters)), shards_(shards) {}

  /// The gradients that the parameters have are all of the next shard: takes them. After the last
  /// shard the parameters have the sums. A gradient that no shard has stays undefined; one that
  /// only some have counts as zero in the others, as it does between ranks.
  void take_gradients();
  /// A loss of the next shard that has samples. Those without come last.
  void add_loss(double loss) { losses_.push_back(loss); }
  /// Of all shards of a step, which then is over.
  double take_loss();

 private:
  using Gradients = std::vector<torch::Tensor>;

  std::vector<torch::Tensor> parameters_;
  int shards_;
  std::vector<Gradients> left_;  // sums of nodes, from left to right
  int taken_ = 0;
  std::vector<double> losses_;
};

}  // namespace stormo::train
