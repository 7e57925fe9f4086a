// Direct reduce-scatter, all-gather and all-reduce.
//
// Idea: no forwarding. The owner of a chunk takes it from every peer in one round and reduces in
// ascending order of rank; then it sends the result to every peer in one round. In shared memory a
// round is one pass over all operands; on a network it is an all-to-all.
// Cost: 1 round and (n-1)/n K bytes sent and received by each rank per phase, as little as the
// ring, but n-1 messages per rank at once: the network must stand n(n-1) flows. Paper: E. Chan, M.
// Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and
// experience", Concurrency and Computation 19(13), 2007 (the reduce-scatter and all-gather that it
// composes; here each by direct exchange).
#include <stormo/schedule/algorithms.h>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {
plan::Schedule direct_reduce_scatter(int ranks) {
  plan::Schedule s =
      without_rounds("direct_reduce_scatter", {plan::GoalKind::kReduceScatter}, ranks, ranks);
  if (ranks == 1) return s;
  plan::Round& round = s.rounds.emplace_back();
  for (Rank to = 0; to < ranks; ++to) {
    for (Rank from = 0; from < ranks; ++from) {
      if (from != to) round.push_back({from, to, to, plan::ReceiveOp::kReduce});
    }
  }
  return s;
}

plan::Schedule direct_all_gather(int ranks) {
  plan::Schedule s =
      without_rounds("direct_all_gather", {plan::GoalKind::kAllGather}, ranks, ranks);
  if (ranks == 1) return s;
  plan::Round& round = s.rounds.emplace_back();
  for (Rank from = 0; from < ranks; ++from) {
    for (Rank to = 0; to < ranks; ++to) {
      if (from != to) round.push_back({from, to, from, plan::ReceiveOp::kCopy});
    }
  }
  return s;
}

plan::Schedule direct_all_reduce(int ranks) {
  return with_goal(then(direct_reduce_scatter(ranks), direct_all_gather(ranks)),
                   "direct_all_reduce", {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
