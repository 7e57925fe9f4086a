#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// Each rank's chunk may be cut into `pieces` that follow one another in a round, so that one is
/// reduced while the next arrives: ranks * pieces chunks, at most plan::kMaxChunks.
/// 1 <= ranks <= plan::kMaxRanks, pieces >= 1.
plan::Schedule ring_reduce_scatter(int ranks, int pieces = 1);
plan::Schedule ring_all_gather(int ranks, int pieces = 1);
/// ring_reduce_scatter, then ring_all_gather.
plan::Schedule ring_all_reduce(int ranks, int pieces = 1);

}  // namespace stormo::schedule
