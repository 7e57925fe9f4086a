#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// 2 * pieces chunks: the first half of them is reduced and broadcast over one tree, the second
/// over another. No rank is interior in both. 1 <= ranks <= plan::kMaxRanks, 1 <= pieces <=
/// plan::kMaxChunks / 2.
plan::Schedule double_tree_all_reduce(int ranks, int pieces = 1);

}  // namespace stormo::schedule
