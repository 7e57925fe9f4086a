#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// Whether all that `p` names exists: axes, parameters, segments, micro-batches; and whether each
/// action takes what its kind can take. What actions need of each other is verify()'s. kBadPlan.
Status check_form(const plan::StepPlan& p);

/// Whether the counts of a split give each of `parts` ranks units, maybe none, and all together.
bool counts_fit(const plan::Split& split, int parts);

}  // namespace stormo::analysis
