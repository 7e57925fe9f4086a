#pragma once

#include <cstdint>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/options.h>
#include <stormo/train/parameters/parameter_store.h>

// Runs of 1-bit Adam: after the first `steps` steps, > 0, ranks exchange momenta, see FrozenAdam.
namespace stormo::train {

/// What does not go with it; all of it. `scales_loss`: the run computes in float16.
Status check_freeze(const TrainerOptions& options, bool scales_loss);

/// The plan of those first steps: gradients travel as they are.
plan::StepPlan plan_before_freeze(plan::StepPlan plan);

/// Of a store for a plan that check_freeze() lets pass, before it has one.
void freeze_after(ParameterStore& store, std::int64_t steps);

}  // namespace stormo::train
