#pragma once

#include <cstddef>
#include <vector>

#include <stormo/plan/step_plan.h>

namespace stormo::train {

/// By trainable parameter of this rank, of which there are `count`: the backwards of a pass that
/// add to its gradient, which is complete after the last of them. A tied parameter gets a term from
/// each piece of the graph that reads it. Only the micro-batch that comes last counts.
std::vector<int> terms_of_gradients(const plan::StepPlan& plan, std::size_t count);

}  // namespace stormo::train
