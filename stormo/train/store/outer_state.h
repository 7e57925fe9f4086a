#pragma once

#include <vector>

#include <torch/types.h>

#include <stormo/parallel/replicas/outer_update.h>
#include <stormo/train/optimizer/fused_optimizer.h>

namespace stormo::train {

/// The outer optimizer of one rank: the weights with which the period began, and a momentum, which
/// is part of the optimizer's state. Equal weights and averages on all ranks give equal results:
/// each number is the result of operations that are rounded one by one, on any rank.
class OuterState {
 public:
  /// `optimizer` is borrowed, and keeps the momentum from now on. Throws Error for a rule with
  /// wrong numbers.
  OuterState(const parallel::OuterOptimizer& rule, FusedOptimizer& optimizer);

  /// Before an update with this learning rate. The first one of a period notes the weights.
  void before_update(double lr);
  /// When the weights are the averages: what comes now is of the next period.
  void end_period() {
    has_moved_ = begun_;
    begun_ = false;
  }
  /// After end_period(): the weights become what the rule makes of them.
  void update();

 private:
  const parallel::OuterOptimizer rule_;
  FusedOptimizer& optimizer_;
  std::vector<torch::Tensor> began_with_;  // by parameter
  bool begun_ = false;                     // the period has updates
  bool has_moved_ = false;                 // the one before had
  double lr_ = 0;                          // of the update before
};

}  // namespace stormo::train
