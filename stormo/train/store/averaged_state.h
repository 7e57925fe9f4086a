#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stormo/train/optimizer/fused_optimizer.h>

namespace stormo::train {

/// What parameter averaging makes equal on all ranks, of one rank: the weights and each slot of the
/// optimizer, and the numbers of steps that its rule counts. How sums over ranks are made is the
/// caller's.
class AveragedState {
 public:
  /// Whether this rank's values of a parameter count in a distance between ranks: where several
  /// ranks of a replica have the same values, those of one of them do.
  using Counts = std::function<bool(const std::string& name)>;

  /// `optimizer` is borrowed. Without `counts` all parameters count.
  explicit AveragedState(FusedOptimizer& optimizer, const Counts& counts = {});

  /// The weights, or a slot, of all parameters of one dtype.
  class Array {
   public:
    std::int64_t elements() const;
    const std::vector<std::size_t>& parameters() const { return parameters_; }
    torch::ScalarType type() const { return values_.front().scalar_type(); }
    /// One tensor with copies of all values.
    torch::Tensor flat() const;
    /// Of one that is as flat(): its part of each value.
    std::vector<torch::Tensor> views_of(const torch::Tensor& flat) const;
    /// The square of the distance to one that is as flat(), of weights that count; else 0.
    double squares_from(const torch::Tensor& flat) const;
    /// The values become those of `average`, which is as flat(). Returns squares_from() it.
    double take(const torch::Tensor& average);

   private:
    friend class AveragedState;
    std::vector<std::size_t> parameters_;  // of the optimizer
    std::vector<torch::Tensor> values_;
    std::vector<bool> counts_;  // whether it counts in a distance
  };
  /// The weights, by dtype, in an order that is the same on all ranks.
  std::vector<Array> weights() { return weights(0, counts_.size()); }
  /// The same of the optimizer's parameters [first, last).
  std::vector<Array> weights(std::size_t first, std::size_t last);
  /// The same of the gradients; a parameter without one gets zeros.
  std::vector<Array> gradients();
  /// The same of a slot; where the rule of a parameter has fewer, of zeros.
  std::vector<Array> slot(std::size_t number);
  /// The same of each slot.
  std::vector<Array> slots();
  /// The weights and then each slot.
  std::vector<Array> arrays();

  /// Of the first of its parameters.
  const std::string& name_of(const Array& array) const;

  /// What ranks sum up first: the weight of this one, then weight * steps of each parameter.
  std::vector<double> weighted_steps(double weight) const;
  /// When all arrays are averages. `sums`: of weighted_steps().
  void end_average(std::span<const double> sums);
  /// When only the weights are.
  void end_average_of_weights() { optimizer_.round_masters(); }

 private:
  /// Of the parameters [first, last). `counts`: whether they count in a distance.
  void add(std::vector<Array>& out, const std::vector<torch::Tensor>& all, bool counts,
           std::size_t first, std::size_t last) const;
  void add(std::vector<Array>& out, const std::vector<torch::Tensor>& all) const {
    add(out, all, /*counts=*/false, 0, all.size());
  }

  FusedOptimizer& optimizer_;
  std::vector<bool> counts_;  // by parameter
};

/// Averages `states` where one process has all of them; `weights`: by state. The terms are added in
/// this order. False, and nothing is done, if all weights are 0.
bool average_together(std::span<AveragedState* const> states, std::span<const double> weights);

}  // namespace stormo::train
