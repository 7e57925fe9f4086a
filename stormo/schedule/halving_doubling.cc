// Recursive halving reduce-scatter, and Rabenseifner's all-reduce by halving and doubling.
//
// Idea: the reduce-scatter is the all-gather by recursive doubling, backwards: peers swap halves of
// what they still have to reduce. The all-reduce does it with the nearest peer first (vector
// halving, distance doubling), so that the largest messages travel least, and then doubles back.
// Ranks beyond a power of two are folded into their neighbours.
// Cost: reduce-scatter log2 n rounds (2 more unless n is a power of two) and (n-1)/n K bytes sent
// by each rank, the least possible; all-reduce 2 log2 n rounds and 2(n-1)/n K bytes, as little as
// the ring in far fewer rounds. For other n a guest sends and receives one K, its host one K more.
// Paper: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
#include <stormo/schedule/algorithms.h>

#include <vector>

#include <stormo/schedule/compose.h>
#include <stormo/schedule/fold.h>

namespace stormo::schedule {
namespace {

int reversed_bits(int number, int power_of_two) {
  int out = 0;
  for (int bit = 1; bit < power_of_two; bit *= 2) {
    out = out * 2 + ((number & bit) != 0 ? 1 : 0);
  }
  return out;
}

}  // namespace

plan::Schedule recursive_halving_reduce_scatter(int ranks) {
  return with_goal(reversed(recursive_doubling_all_gather(ranks), plan::ReceiveOp::kReduce),
                   "recursive_halving_reduce_scatter", {plan::GoalKind::kReduceScatter});
}

plan::Schedule halving_doubling_all_reduce(int ranks) {
  const int core = Fold(ranks).core;
  std::vector<Rank> nearest_first;
  for (int i = 0; i < core; ++i) nearest_first.push_back(reversed_bits(i, core));
  const plan::Schedule far_first =
      then(recursive_halving_reduce_scatter(core), recursive_doubling_all_gather(core));
  const plan::Schedule s =
      on_group(far_first, nearest_first, core, {.offset = 0, .width = 1, .chunks = core});
  return with_goal(folded(s, ranks), "halving_doubling_all_reduce", {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
