#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <torch/types.h>

#include <stormo/parallel/replicas/outer_update.h>
#include <stormo/train/optimizer/fused_optimizer.h>

namespace stormo::train {

/// The outer optimizer of one rank: the weights with which each parameter's period began, and a
/// momentum, which is part of the optimizer's state. Equal weights and averages on all ranks give
/// equal results: each number is the result of operations that are rounded one by one, on any rank.
class OuterState {
 public:
  /// `optimizer` is borrowed, and keeps the momentum from now on. Throws Error for a rule with
  /// wrong numbers.
  OuterState(const parallel::OuterOptimizer& rule, FusedOptimizer& optimizer);

  /// Before an update with this learning rate. The first one of a period notes the weights.
  void before_update(double lr);
  /// When the weights of the parameters [first, last) are the averages: what comes now is of their
  /// next period.
  void end_period(std::size_t first, std::size_t last);
  /// After end_period(): the weights become what the rule makes of them.
  void update(std::size_t first, std::size_t last);

  /// The weights with which the present period began, by parameter; empty: it has had no update.
  std::vector<torch::Tensor> period() const;
  /// Goes on in a period of another store, after an update with this learning rate.
  void go_on(std::vector<torch::Tensor> period, double lr);

  /// Of a parameter whose period has had an update.
  const torch::Tensor& began_with(std::size_t parameter) const { return began_with_[parameter]; }
  /// Where the averages are beside the weights: they become what the rule makes of them, with which
  /// the next period begins. The weights keep the share `mixing`, and take the rest from there.
  void update(std::span<const std::size_t> parameters, std::span<torch::Tensor> averages,
              double mixing);

 private:
  /// The average `x` of a parameter that has moved, or not, becomes what the rule makes of it.
  void update(std::size_t parameter, bool has_moved, const torch::Tensor& kept, torch::Tensor& x);

  const parallel::OuterOptimizer rule_;
  FusedOptimizer& optimizer_;
  std::vector<torch::Tensor> began_with_;  // by parameter
  std::vector<bool> begun_;                // its period has updates
  std::vector<bool> has_moved_;            // the one before had
  double lr_ = 0;                          // of the update before
};

}  // namespace stormo::train
