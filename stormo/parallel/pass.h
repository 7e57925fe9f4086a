#pragma once

#include <functional>
#include <string>
#include <utility>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// A strategy: a pure rewrite of the step plan. Fails with kInvalidArgument or kBadPlan when the
/// plan cannot be rewritten so.
using Pass = std::function<Result<plan::StepPlan>(const plan::StepPlan&)>;

/// `plan` after the passes, applied in the order given. The first failure ends it, with the passes
/// already applied as context; every intermediate plan is validated.
template <class... Passes>
Result<plan::StepPlan> compose(plan::StepPlan plan, const Passes&... passes) {
  Status status = validate(plan);
  [[maybe_unused]] const auto apply = [&](const Pass& pass) {
    if (!status.ok()) return;
    const std::string context = "after " + plan.strategy;
    Result<plan::StepPlan> next = pass(plan);
    if (!next.ok()) {
      status = next.status().within(context);
      return;
    }
    plan = std::move(next).value();
    status = validate(plan).within(plan.strategy);
  };
  (apply(passes), ...);
  if (!status.ok()) return status;
  return plan;
}

}  // namespace stormo::parallel
