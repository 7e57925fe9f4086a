#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// Algorithms for powers of two serve any number of ranks when the ranks beyond the largest power
/// of two, the guests, are folded into as many others, their hosts. Guest and host are neighbours:
/// rank 2i+1 is the guest of rank 2i, for i < num_guests. The others have none.
struct Fold {
  explicit Fold(int ranks);
  int core = 1;        ///< the largest power of two <= ranks: ranks that are no guests
  int num_guests = 0;  ///< ranks - core
  Rank rank_of(int member) const { return member < num_guests ? 2 * member : member + num_guests; }
};

/// An all-reduce among `ranks` ranks by `core`, one among Fold(ranks).core ranks: guests add all
/// they have to their hosts first and get the result from them at the end. Name and goal of `core`.
plan::Schedule folded(const plan::Schedule& core, int ranks);

}  // namespace stormo::schedule
