#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// One chunk; rank 0 reduces what all others send, in ascending order of rank, then sends the
/// result to all. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule star_all_reduce(int ranks);

}  // namespace stormo::schedule
