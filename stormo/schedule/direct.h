#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// `ranks` chunks; in one round rank r reduces chunk r of all peers, listed in ascending order of
/// `from`. ranks * (ranks - 1) transfers. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule direct_reduce_scatter(int ranks);

/// `ranks` chunks; in one round rank r sends chunk r to all peers. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule direct_all_gather(int ranks);

/// direct_reduce_scatter, then direct_all_gather. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule direct_all_reduce(int ranks);

}  // namespace stormo::schedule
