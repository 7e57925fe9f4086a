#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// `pieces` chunks, from `root` to its right around to its left. 1 <= ranks <= plan::kMaxRanks,
/// 0 <= root < ranks, 1 <= pieces <= plan::kMaxChunks.
plan::Schedule chain_broadcast(int ranks, Rank root, int pieces = 1);

/// `pieces` chunks; rank r ends with the reduction of ranks 0 to r. 1 <= ranks <= plan::kMaxRanks,
/// 1 <= pieces <= plan::kMaxChunks.
plan::Schedule chain_scan(int ranks, int pieces = 1);

}  // namespace stormo::schedule
