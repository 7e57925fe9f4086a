#pragma once

#include <vector>

#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// The actions of `in`, a plan of a pipeline whose steps do not overlap, with what sharded() adds:
/// the ranks that have the same stage share one copy of it. The units are those of
/// plan::units_of(). O(actions * parameters of a segment).
std::vector<plan::Action> shard_stages(const Sharding& how, const plan::StepPlan& in);

}  // namespace stormo::parallel
