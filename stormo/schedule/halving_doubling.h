#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// `ranks` chunks; rank r ends with the reduction of chunk r. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule recursive_halving_reduce_scatter(int ranks);

/// As many chunks as the largest power of two <= ranks. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule halving_doubling_all_reduce(int ranks);

}  // namespace stormo::schedule
