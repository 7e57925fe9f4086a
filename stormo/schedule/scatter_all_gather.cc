// Scatter and all-gather broadcast, van de Geijn's algorithm.
//
// Idea: the root scatters the buffer over a binomial tree, then a ring all-gather puts the parts
// together everywhere. The root, and ranks that passed parts on in the scatter, are not sent what
// they have.
// Cost: ceil(log2 n) + n-1 rounds; the root sends 2(n-1)/n K bytes, every other rank receives K:
// for large buffers and many ranks, where a tree would make the root send log2 n times K.
// Paper: M. Barnett, L. Shuler, R. van de Geijn, S. Gupta, D. G. Payne, J. Watts, "Interprocessor
// collective communication library (InterCom)", Scalable High Performance Computing Conference
// 1994.
#include <stormo/schedule/algorithms.h>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {

plan::Schedule scatter_all_gather_broadcast(int ranks, Rank root) {
  return without_repeats(with_goal(then(binomial_scatter(ranks, root), ring_all_gather(ranks)),
                                   "scatter_all_gather_broadcast",
                                   {plan::GoalKind::kBroadcast, root}));
}

}  // namespace stormo::schedule
