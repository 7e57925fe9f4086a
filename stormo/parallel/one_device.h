#pragma once

#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// The plan that every strategy starts from: one rank loads the batch, computes the whole model
/// forward and backward, and updates it. The model must have at least one segment, or verify()
/// refuses the plan.
plan::StepPlan one_device(plan::ModelShape model);

}  // namespace stormo::parallel
