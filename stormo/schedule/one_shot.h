#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// One chunk, one round: every rank sends it to all others and reduces it from all others, listed
/// by receiver and then by sender. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule one_shot_all_reduce(int ranks);

}  // namespace stormo::schedule
