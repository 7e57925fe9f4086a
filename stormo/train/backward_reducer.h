#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <stormo/train/backward_hooks.h>
#include <stormo/train/gradient_reducer.h>

namespace stormo::train {

/// A GradientReducer that follows the backward passes of a Runner: it overlaps with the last pass
/// of a step, and is told when the step's gradients are wanted.
class BackwardReducer {
 public:
  /// As GradientReducer.
  BackwardReducer(comm::Communicator& world, std::vector<NamedParameter> parameters,
                  const Reduction& how);

  /// Before a pass of a loss that counts for `weight`; gradients stay local unless it is the
  /// `last` pass of the step.
  void begin_pass(double weight, bool last);
  /// The gradients are complete: sends what has not been sent. A collective, as the following.
  Status start(double weight);
  /// Waits until all are averaged.
  Status finish();
  /// As GradientReducer::finish(), also after finish().
  Status each_averaged(const GradientReducer::Averaged& averaged);
  std::string describe() const { return reducer_.describe(); }

 private:
  GradientReducer reducer_;
  std::size_t count_;  // of parameters
  bool travelling_ = false;
  std::unique_ptr<BackwardHooks> hooks_;  // null: nothing happens before the end of backward
};

}  // namespace stormo::train
