#pragma once

#include <string>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// The axis of replicas that train on samples of their own.
inline constexpr const char* kReplicaAxis = "dp";

/// kBadPlan if the mesh has axes already, for a pass that makes the first and only ones.
Status check_no_axes(const plan::StepPlan& plan, const std::string& pass);

}  // namespace stormo::parallel
