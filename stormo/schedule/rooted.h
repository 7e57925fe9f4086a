#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// One round each; 1 <= ranks <= plan::kMaxRanks, 0 <= root < ranks. Broadcast and reduce move one
/// chunk, gather and scatter `ranks` chunks, of which the root keeps its own.
plan::Schedule direct_broadcast(int ranks, Rank root);
plan::Schedule direct_reduce(int ranks, Rank root);
plan::Schedule direct_scatter(int ranks, Rank root);
plan::Schedule direct_gather(int ranks, Rank root);

}  // namespace stormo::schedule
