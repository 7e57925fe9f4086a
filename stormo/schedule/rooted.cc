// Direct broadcast, reduce, scatter and gather.
//
// Idea: no forwarding: the root exchanges one message with every other rank, all in one round. In
// the reduce it adds in ascending order of rank. Cost: 1 round; the root sends or receives (n-1) K
// bytes in broadcast and reduce, (n-1)/n K bytes in scatter and gather, which is no more than it
// must there. Good in shared memory, where all read the root's data at once, and for few ranks.
// A large reduce leaves no rank idle: reduce-scatter, then gather (Rabenseifner); in shared memory
// both are one pass. Papers: none needed for the flat trees that others are measured against; R.
// Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
#include <stormo/schedule/algorithms.h>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;

/// One round from the root; rank r gets chunk r % chunks.
plan::Schedule from_root(const char* name, plan::Goal goal, int ranks, int chunks) {
  plan::Schedule s = without_rounds(name, goal, ranks, chunks);
  if (ranks == 1) return s;
  plan::Round& round = s.rounds.emplace_back();
  for (Rank r = 0; r < ranks; ++r) {
    if (r == goal.root) continue;
    round.push_back({.from = goal.root, .to = r, .chunk = r % chunks, .how = ReceiveOp::kCopy});
  }
  return s;
}

}  // namespace

plan::Schedule direct_broadcast(int ranks, Rank root) {
  return from_root("direct_broadcast", {GoalKind::kBroadcast, root}, ranks, 1);
}

plan::Schedule direct_reduce(int ranks, Rank root) {
  return reversed(from_root("direct_reduce", {GoalKind::kReduce, root}, ranks, 1),
                  ReceiveOp::kReduce);
}

plan::Schedule scatter_gather_reduce(int ranks, Rank root) {
  return with_goal(then(direct_reduce_scatter(ranks), direct_gather(ranks, root)),
                   "scatter_gather_reduce", {GoalKind::kReduce, root});
}

plan::Schedule direct_scatter(int ranks, Rank root) {
  return from_root("direct_scatter", {GoalKind::kScatter, root}, ranks, ranks);
}

plan::Schedule direct_gather(int ranks, Rank root) {
  return reversed(from_root("direct_gather", {GoalKind::kGather, root}, ranks, ranks),
                  ReceiveOp::kCopy);
}

}  // namespace stormo::schedule
