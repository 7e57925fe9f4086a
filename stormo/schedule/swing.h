#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// As many chunks as the largest power of two <= ranks. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule swing_all_reduce(int ranks);

}  // namespace stormo::schedule
