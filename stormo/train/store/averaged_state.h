#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <stormo/train/optimizer/fused_optimizer.h>

namespace stormo::train {

/// What parameter averaging makes equal on all ranks, of one rank: the weights and each slot of the
/// optimizer, and the numbers of steps that its rule counts. How sums over ranks are made is the
/// caller's.
class AveragedState {
 public:
  /// `optimizer` is borrowed.
  explicit AveragedState(FusedOptimizer& optimizer);

  /// The weights, or a slot, of all parameters of one dtype.
  class Array {
   public:
    Array(std::vector<torch::Tensor> values, bool is_weights)
        : values_(std::move(values)), is_weights_(is_weights) {}
    /// One tensor with copies of all values.
    torch::Tensor flat() const;
    /// The values become those of `average`, which is as flat(). Returns the square of the distance
    /// between both, of weights; else 0.
    double take(const torch::Tensor& average);

   private:
    std::vector<torch::Tensor> values_;
    bool is_weights_;
  };
  /// In an order that is the same on all ranks.
  std::vector<Array> arrays();

  /// What ranks sum up first: the weight of this one, then weight * steps of each parameter.
  std::vector<double> weighted_steps(double weight) const;
  /// When all arrays are averages. `sums`: of weighted_steps().
  void end_average(std::span<const double> sums);

 private:
  FusedOptimizer& optimizer_;
  std::vector<std::vector<std::size_t>> together_;  // parameters of one array
};

}  // namespace stormo::train
