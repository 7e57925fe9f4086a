// Bruck's all-gather and all-to-all.
//
// Idea: in step s every rank sends to the one 2^s to its left (all-gather) or right (all-to-all).
// In the all-gather it sends all it has, and so has twice as much after each step; the last step is
// cut to what is missing. In the all-to-all a block that must travel d ranks to the right takes the
// steps of the bits of d, so that many blocks share a message. Cost: ceil(log2 n) rounds for any n,
// the least possible. All-gather: (n-1)/n K bytes sent by each rank, no more than needed.
// All-to-all: about log2(n)/2 times the bytes of a direct exchange, in log2 n messages instead of
// n-1: for small blocks. Paper: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient
// algorithms for all-to-all communications in multiport message-passing systems", IEEE TPDS 8(11),
// 1997.
#include <stormo/schedule/algorithms.h>

#include <algorithm>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>
#include <stormo/schedule/compose.h>

namespace stormo::schedule {

plan::Schedule bruck_all_gather(int ranks) {
  plan::Schedule s = without_rounds("bruck_all_gather", {plan::GoalKind::kAllGather}, ranks, ranks);
  for (int distance = 1; distance < ranks; distance *= 2) {
    plan::Round& round = s.rounds.emplace_back();
    for (Rank r = 0; r < ranks; ++r) {
      for (int i = 0; i < std::min(distance, ranks - distance); ++i) {
        round.push_back({.from = r,
                         .to = (r + ranks - distance) % ranks,
                         .chunk = (r + i) % ranks,
                         .how = plan::ReceiveOp::kCopy});
      }
    }
  }
  return s;
}

plan::Schedule bruck_all_to_all(int ranks) {
  STORMO_CHECK(ranks >= 1 && ranks <= plan::kMaxChunks / ranks, "bruck: ranks out of range");
  plan::Schedule s =
      without_rounds("bruck_all_to_all", {plan::GoalKind::kAllToAll}, ranks, ranks * ranks);
  for (int distance = 1; distance < ranks; distance *= 2) {
    plan::Round& round = s.rounds.emplace_back();
    for (Rank r = 0; r < ranks; ++r) {
      for (int way = distance; way < ranks; ++way) {
        if ((way & distance) == 0) continue;
        const Rank sender = (r - way % distance + ranks) % ranks;  // where the block set out
        round.push_back({.from = r,
                         .to = (r + distance) % ranks,
                         .chunk = sender * ranks + (sender + way) % ranks,
                         .how = plan::ReceiveOp::kCopy});
      }
    }
  }
  return s;
}

}  // namespace stormo::schedule
