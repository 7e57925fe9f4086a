#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// A strategy: a pure rewrite of the step plan. Fails with kInvalidArgument or kBadPlan when the
/// plan cannot be rewritten so.
using Pass = std::function<Result<plan::StepPlan>(const plan::StepPlan&)>;

/// `plan` after the passes, applied in the order given. The first failure ends it, with the passes
/// already applied as context; every intermediate plan is verified.
Result<plan::StepPlan> compose(plan::StepPlan plan, const std::vector<Pass>& passes);
template <class... Passes>
Result<plan::StepPlan> compose(plan::StepPlan plan, const Passes&... passes) {
  return compose(std::move(plan), std::vector<Pass>{passes...});
}

}  // namespace stormo::parallel
