#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/schedule.h>

namespace stormo::analysis {

/// OK when the schedule, a valid one that reduces (see verify), adds up every element over the tree
/// of `shards` leaves of plan/logical_shards.h, s.ranks <= shards: each rank begins with the sum of
/// its leaves over its part of the tree, and wherever the goal requires a result it has to be
/// computed as the tree says. Sums of two terms are commutative, those of more never fit. Else
/// kBadPlan with the first rank and chunk whose sum has another order. Time O(transfers + chunks *
/// ranks), once the terms are known.
Status verify_fixed_tree(const plan::Schedule& s, int shards);

}  // namespace stormo::analysis
