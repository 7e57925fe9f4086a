#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// `ranks` chunks; rank r ends with the reduction of chunk r. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule ring_reduce_scatter(int ranks);

/// `ranks` chunks; chunk r starts at rank r. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule ring_all_gather(int ranks);

/// ring_reduce_scatter, then ring_all_gather. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule ring_all_reduce(int ranks);

}  // namespace stormo::schedule
