#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// These have one round unless noted otherwise; 1 <= ranks <= plan::kMaxRanks, 0 <= root < ranks.
/// Broadcast and reduce have one chunk, gather and scatter have `ranks` chunks, of which the root
/// keeps its own.
plan::Schedule direct_broadcast(int ranks, Rank root);
plan::Schedule direct_reduce(int ranks, Rank root);
/// ranks chunks in two rounds: every rank reduces one, then the root collects them.
plan::Schedule scatter_gather_reduce(int ranks, Rank root);
plan::Schedule direct_scatter(int ranks, Rank root);
plan::Schedule direct_gather(int ranks, Rank root);

}  // namespace stormo::schedule
