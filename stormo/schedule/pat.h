#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// `ranks` chunks; chunk r starts at rank r. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule pat_all_gather(int ranks);

/// `ranks` chunks; rank r ends with the reduction of chunk r. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule pat_reduce_scatter(int ranks);

}  // namespace stormo::schedule
