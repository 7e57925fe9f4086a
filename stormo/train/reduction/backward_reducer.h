#pragma once

#include <memory>
#include <vector>

#include <stormo/train/autograd/backward_hooks.h>
#include <stormo/train/reduction/gradient_reducer.h>

namespace stormo::train {

/// A GradientReducer that follows the backward passes of a Runner: what is asynchronous starts
/// during the last pass of a step, as autograd puts gradients in place.
class BackwardReducer {
 public:
  /// As GradientReducer.
  BackwardReducer(comm::Communicator& world, std::vector<NamedParameter> parameters,
                  const Reduction& how);

  /// As GradientReducer; a plan without anything asynchronous has no hooks.
  void follow(const plan::StepPlan& plan, DoneAction done);
  /// Before a backward; nothing starts during it unless it is one of the `last`.
  void begin_backward(bool last);
  GradientReducer& reducer() { return reducer_; }

 private:
  GradientReducer reducer_;
  std::vector<torch::Tensor> tensors_;
  std::unique_ptr<BackwardHooks> hooks_;
};

}  // namespace stormo::train
