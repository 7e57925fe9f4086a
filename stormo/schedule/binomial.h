#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// One chunk, from `root` to all. 1 <= ranks <= plan::kMaxRanks, 0 <= root < ranks.
plan::Schedule binomial_broadcast(int ranks, Rank root);

/// One chunk, from all to `root`. 1 <= ranks <= plan::kMaxRanks, 0 <= root < ranks.
plan::Schedule binomial_reduce(int ranks, Rank root);

/// binomial_reduce to rank 0, then binomial_broadcast. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule binomial_all_reduce(int ranks);

}  // namespace stormo::schedule
