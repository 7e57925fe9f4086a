// Binomial-tree broadcast, reduce and all-reduce.
//
// Idea: in every round each rank that has the data sends it to one that has not, so that the number
// of holders doubles. Ranks are counted from the root; far ranks are served first. The reduce is
// the same backwards, the all-reduce one after the other. Cost: broadcast and reduce ceil(log2 n)
// rounds each, the least possible; (n-1) K bytes in all, of which the root sends or receives
// ceil(log2 n) K. Good for small buffers; a large one wants scatter and all-gather. Paper: R.
// Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
// MPICH", Int. J. High Performance Computing Applications 19(1), 2005, section 4.2.
#include <stormo/schedule/algorithms.h>

#include <bit>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {

plan::Schedule binomial_broadcast(int ranks, Rank root) {
  plan::Schedule s =
      without_rounds("binomial_broadcast", {plan::GoalKind::kBroadcast, root}, ranks, 1);
  if (ranks == 1) return s;
  // the farthest first, so that data crosses to another host before it is spread inside hosts
  for (auto distance = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks - 1)));
       distance >= 1; distance /= 2) {
    plan::Round& round = s.rounds.emplace_back();
    for (int i = 0; i + distance < ranks; i += 2 * distance) {
      round.push_back({.from = (root + i) % ranks,
                       .to = (root + i + distance) % ranks,
                       .chunk = 0,
                       .how = plan::ReceiveOp::kCopy});
    }
  }
  return s;
}

plan::Schedule binomial_reduce(int ranks, Rank root) {
  return with_goal(reversed(binomial_broadcast(ranks, root), plan::ReceiveOp::kReduce),
                   "binomial_reduce", {plan::GoalKind::kReduce, root});
}

plan::Schedule binomial_all_reduce(int ranks) {
  return with_goal(then(binomial_reduce(ranks, 0), binomial_broadcast(ranks, 0)),
                   "binomial_all_reduce", {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
