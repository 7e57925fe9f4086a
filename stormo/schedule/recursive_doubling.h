#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// One chunk. Ranks both send and reduce it in the same round. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule recursive_doubling_all_reduce(int ranks);

/// `ranks` chunks; chunk r starts at rank r. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule recursive_doubling_all_gather(int ranks);

}  // namespace stormo::schedule
