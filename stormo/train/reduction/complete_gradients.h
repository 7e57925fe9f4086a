#pragma once

#include <cstddef>
#include <vector>

#include <stormo/plan/step_plan.h>

namespace stormo::train {

/// Which gradients of a pass are complete, as backward adds to them. A tied parameter gets a term
/// from each piece of the graph that reads it. Only the micro-batch that comes last counts.
class CompleteGradients {
 public:
  /// From the next pass on follows `plan`, which has `count` trainable parameters on this rank.
  void set_plan(const plan::StepPlan& plan, std::size_t count);
  void next_pass();

  enum class State {
    kMore,      ///< another backward will add to it
    kComplete,  ///< this was the last one
    kAgain,     ///< it was complete before, and has changed
  };
  /// A backward has added to gradient `index`.
  State add(std::size_t index);

 private:
  std::vector<int> expected_;  // by parameter: backwards that add to its gradient
  std::vector<int> added_;     // by parameter, in this pass
};

}  // namespace stormo::train
