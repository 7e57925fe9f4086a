// Star all-reduce.
//
// Idea: everyone sends all it has to rank 0, which reduces in ascending order of rank and sends the
// result back to everyone.
// Cost: 2 rounds whatever n, but rank 0 receives and sends (n-1) K bytes. Good for few ranks or
// tiny buffers; also the reference for a reduction order that is easy to state. Paper: none needed;
// it is the reduce and broadcast through a root that others are measured against.
#include <stormo/schedule/algorithms.h>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {

plan::Schedule star_all_reduce(int ranks) {
  return with_goal(then(direct_reduce(ranks, 0), direct_broadcast(ranks, 0)), "star_all_reduce",
                   {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
