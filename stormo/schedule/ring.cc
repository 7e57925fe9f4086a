// Ring reduce-scatter, all-gather and all-reduce.
//
// Idea: every rank talks to its right neighbour only. In reduce-scatter a partial sum of each chunk
// travels once around the ring and grows at every stop; it ends at the rank that owns the chunk. In
// all-gather the finished chunks travel around once more.
// Cost: n-1 rounds and (n-1)/n K bytes sent and received by each rank per phase, which is the least
// possible for bandwidth; latency grows with n. Cut into pieces, a chunk moves in as many transfers
// of a round, and all but the last are reduced while others arrive.
// Paper: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", J. Parallel and Distributed Computing 69(2), 2009.
#include <stormo/schedule/algorithms.h>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;

/// n-1 rounds in which rank r passes chunk (r + shift - step) mod n to its right.
plan::Schedule once_around(const char* name, GoalKind goal, int ranks, int shift, ReceiveOp how) {
  plan::Schedule s = without_rounds(name, {goal}, ranks, ranks);
  for (int step = 0; step + 1 < ranks; ++step) {
    plan::Round& round = s.rounds.emplace_back();
    round.reserve(static_cast<std::size_t>(ranks));
    for (Rank r = 0; r < ranks; ++r) {
      const int chunk = (r + shift - step + 2 * ranks) % ranks;
      round.push_back({.from = r, .to = (r + 1) % ranks, .chunk = chunk, .how = how});
    }
  }
  return s;
}

}  // namespace

plan::Schedule ring_reduce_scatter(int ranks, int pieces) {
  // chunk c sets out at rank c+1 and so arrives, complete, at rank c
  return in_pieces(
      once_around("ring_reduce_scatter", GoalKind::kReduceScatter, ranks, -1, ReceiveOp::kReduce),
      pieces);
}

plan::Schedule ring_all_gather(int ranks, int pieces) {
  return in_pieces(once_around("ring_all_gather", GoalKind::kAllGather, ranks, 0, ReceiveOp::kCopy),
                   pieces);
}

plan::Schedule ring_all_reduce(int ranks, int pieces) {
  return with_goal(then(ring_reduce_scatter(ranks, pieces), ring_all_gather(ranks, pieces)),
                   "ring_all_reduce", {GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
