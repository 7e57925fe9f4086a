#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// `ranks` chunks, from `root`; chunk r ends at rank r. 1 <= ranks <= plan::kMaxRanks,
/// 0 <= root < ranks.
plan::Schedule binomial_scatter(int ranks, Rank root);

/// `ranks` chunks, to `root`; chunk r starts at rank r. 1 <= ranks <= plan::kMaxRanks,
/// 0 <= root < ranks.
plan::Schedule binomial_gather(int ranks, Rank root);

}  // namespace stormo::schedule
