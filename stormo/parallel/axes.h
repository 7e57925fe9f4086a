#pragma once

#include <string>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

// What passes ask of the axes of a mesh, and add to them.
namespace stormo::parallel {

/// The axis of replicas that train on samples of their own.
inline constexpr const char* kReplicaAxis = "dp";
/// That of the ranks of a host.
inline constexpr const char* kHostAxis = "host";

/// kBadPlan if the mesh has axes already, for a pass that makes the first and only ones.
Status check_no_axes(const plan::StepPlan& plan, const std::string& pass);

/// Adds an axis of at least 2 ranks to a plan, as the innermost one, with a placement of all state
/// over it. `pass` is for messages. kInvalidArgument for another number of ranks, kBadPlan if the
/// mesh has the axis already.
Status add_inner_axis(plan::StepPlan& plan, const std::string& pass, const plan::Axis& axis,
                      plan::Placement placement);

}  // namespace stormo::parallel
