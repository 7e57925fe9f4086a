#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Scheduled model parallelism: a step trains only the parts of parameters that it chooses. Its
/// update comes `depth` steps later, so that as many further steps are under way besides it. All
/// ranks agree after every `every` steps or, where that depends on what is chosen, about so many.
/// kInvalidArgument for numbers out of range, kBadPlan for a plan without load, update or agree,
/// and for one that scales or clips gradients.
Pass choose(int depth, int every);

}  // namespace stormo::parallel
