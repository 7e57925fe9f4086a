#pragma once

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
  /// The average of the gradients; a collective.
  Status reduce(double weight);
  std::string describe() const { return reducer_.describe(); }

 private:
  GradientReducer reducer_;
  std::unique_ptr<BackwardHooks> hooks_;  // null: nothing happens before the end of backward
};

}  // namespace stormo::train
