#pragma once

#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// The plan to which the passes of every strategy are applied: one rank loads the batch, computes
/// forward and backward of the whole model, and updates it. The model must have at least one
/// segment, else verify() refuses the plan.
plan::StepPlan one_device(plan::ModelShape model);

}  // namespace stormo::parallel
