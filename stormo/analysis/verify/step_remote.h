#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// Whether what `p` keeps on servers can be there: trainable parameters together with their
/// optimizer state, on the only axis of the mesh. kBadPlan.
Status check_remote_state(const plan::StepPlan& p);

/// Whether `a` is an action of workers in a plan whose parameters are on servers, and no such
/// action in other plans. `centre`: has_centre(p), which looks at all actions. kBadPlan.
Status check_remote_action(const plan::StepPlan& p, bool centre, const plan::Action& a);

}  // namespace stormo::analysis
