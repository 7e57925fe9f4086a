#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// Extends an algorithm for powers of two to any number of ranks. The ranks in excess of the
/// largest power of two are the guests. Each guest is assigned to another rank, its host (not a
/// machine): rank 2i+1 is the guest of rank 2i, for i < num_guests. The other ranks have no guest.
struct Fold {
  explicit Fold(int ranks);
  int core = 1;        ///< the largest power of two <= ranks: ranks that are no guests
  int num_guests = 0;  ///< ranks - core
  Rank rank_of(int member) const { return member < num_guests ? 2 * member : member + num_guests; }
};

/// An all-reduce among `ranks` ranks, made from `core`, an all-reduce among Fold(ranks).core ranks.
/// In the first round guests send their data to their hosts, which add them; in the last round they
/// get the result. Name and goal of `core`.
plan::Schedule folded(const plan::Schedule& core, int ranks);

}  // namespace stormo::schedule
