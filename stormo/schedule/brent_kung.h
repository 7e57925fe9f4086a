#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// One chunk; rank r ends with the reduction of ranks 0 to r. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule brent_kung_scan(int ranks);

}  // namespace stormo::schedule
