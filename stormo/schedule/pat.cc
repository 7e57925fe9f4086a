// PAT (parallel aggregated trees): all-gather and reduce-scatter.
//
// Idea: every chunk is broadcast over a binomial tree of its own, all trees at once, each moved on
// by one rank; the transfers of all trees over one distance are one round. As in Bruck's all-gather
// that takes log2 n rounds for any n, but the farthest distance comes first, when a rank has one
// chunk to send, and half of all bytes travel one rank. The reduce-scatter is the same backwards.
// Here partial sums lie in place of the rank's own terms, so that the trees need no buffers to be
// cut to. Cost: ceil(log2 n) rounds and (n-1)/n K bytes sent and received by each rank, both the
// least possible, for any n. Paper: S. Jeaugey, "PAT: a new algorithm for all-gather and
// reduce-scatter operations at scale", arXiv 2506.20252, 2025.
#include <stormo/schedule/algorithms.h>

#include <bit>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {

plan::Schedule pat_all_gather(int ranks) {
  plan::Schedule s = without_rounds("pat_all_gather", {plan::GoalKind::kAllGather}, ranks, ranks);
  const auto beyond = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks)));
  for (int distance = beyond / 2; distance >= 1; distance /= 2) {
    plan::Round& round = s.rounds.emplace_back();
    for (Rank r = 0; r < ranks; ++r) {
      for (int come = 0; come + distance < ranks; come += 2 * distance) {
        round.push_back({.from = r,
                         .to = (r + distance) % ranks,
                         .chunk = (r - come + ranks) % ranks,
                         .how = plan::ReceiveOp::kCopy});
      }
    }
  }
  return s;
}

plan::Schedule pat_reduce_scatter(int ranks) {
  return with_goal(reversed(pat_all_gather(ranks), plan::ReceiveOp::kReduce), "pat_reduce_scatter",
                   {plan::GoalKind::kReduceScatter});
}

}  // namespace stormo::schedule
