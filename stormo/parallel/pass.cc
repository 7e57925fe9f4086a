#include <stormo/parallel/pass.h>

#include <stormo/analysis/verify/step_verify.h>

namespace stormo::parallel {

Result<plan::StepPlan> compose(plan::StepPlan plan, const std::vector<Pass>& passes) {
  STORMO_RETURN_IF_ERROR(analysis::verify(plan));
  for (const Pass& pass : passes) {
    Result<plan::StepPlan> next = pass(plan);
    if (!next.ok()) return next.status().within("after " + plan.strategy);
    plan = std::move(next).value();
    STORMO_RETURN_IF_ERROR(analysis::verify(plan).within(plan.strategy));
  }
  return plan;
}

}  // namespace stormo::parallel
