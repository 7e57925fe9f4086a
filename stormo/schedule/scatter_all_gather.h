#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// `ranks` chunks, from `root` to all. 1 <= ranks <= plan::kMaxRanks, 0 <= root < ranks.
plan::Schedule scatter_all_gather_broadcast(int ranks, Rank root);

}  // namespace stormo::schedule
