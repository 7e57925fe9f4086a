#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// A pure function from a step plan to a step plan; a strategy is a list of passes. Fails with
/// kInvalidArgument or kBadPlan for a plan that it cannot rewrite.
using Pass = std::function<Result<plan::StepPlan>(const plan::StepPlan&)>;

/// Applies the passes to `plan` in the order given, and verifies every intermediate plan. Returns
/// the first failure, with the passes already applied as context.
Result<plan::StepPlan> compose(plan::StepPlan plan, const std::vector<Pass>& passes);
template <class... Passes>
Result<plan::StepPlan> compose(plan::StepPlan plan, const Passes&... passes) {
  return compose(std::move(plan), std::vector<Pass>{passes...});
}

}  // namespace stormo::parallel
