#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::plan {

/// Whether a mesh can be: names and sizes of its axes. kBadPlan, as all below.
Status check(const Mesh& mesh);
/// Whether a model can be: sizes of parameters, and which of them segments borrow. Not for the part
/// of one rank (model_of()).
Status check(const ModelShape& model);
/// Whether each rank of an axis that cuts the model or its samples gets a part of them: a stage,
/// slices, positions, places. Of a mesh and a model that can be.
Status check_parts(const StepPlan& p);

/// Whether an action makes no workers of servers wait for each other, and exchanges with servers
/// only where there are some. `centre`: has_centre(p), which looks at all actions.
Status check_workers(const StepPlan& p, bool centre, const Action& a);

/// Whether all that `p` says is right by itself: the above, how its state is placed between steps,
/// and of each action whether what it names exists and its row allows what it takes (ActionRow).
/// What actions need of each other is analysis::verify's.
Status check(const StepPlan& p);

}  // namespace stormo::plan
