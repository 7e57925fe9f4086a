#pragma once

#include <memory>
#include <vector>

#include <stormo/train/autograd/backward_hooks.h>
#include <stormo/train/reduction/gradient_reducer.h>

namespace stormo::train {

/// A GradientReducer that observes the backward passes of a Runner: asynchronous reductions start
/// during the last pass of a step, as soon as their gradients are complete.
class BackwardReducer {
 public:
  /// As GradientReducer.
  BackwardReducer(comm::Communicator& world, std::vector<NamedParameter> parameters);

  /// As GradientReducer; for a plan without asynchronous reductions no hooks are installed.
  void set_plan(const plan::StepPlan& plan, DoneAction done);
  /// Called before a backward. Reductions start during it only if `last`.
  void begin_backward(bool last);
  GradientReducer& reducer() { return reducer_; }

 private:
  GradientReducer reducer_;
  std::vector<torch::Tensor> tensors_;
  std::unique_ptr<BackwardHooks> hooks_;
};

}  // namespace stormo::train
