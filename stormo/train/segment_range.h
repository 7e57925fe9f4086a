#pragma once

#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/parameter_store.h>

namespace stormo::train {

/// Whether the action is about all segments of the model.
bool covers_all(const plan::ModelShape& model, const plan::Action& action);

/// The parameters that belong to the action's segments: segments hold consecutive parameters, so
/// their sizes say where each one begins. kBadPlan when no parameters begin and end there.
Result<ParameterRange> parameters_of(const plan::ModelShape& model, const plan::Action& action,
                                     const std::vector<NamedParameter>& parameters);

}  // namespace stormo::train
