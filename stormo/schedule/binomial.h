#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// One chunk, from `root` to all. 1 <= ranks <= plan::kMaxRanks, 0 <= root < ranks.
plan::Schedule binomial_broadcast(int ranks, Rank root);

}  // namespace stormo::schedule
