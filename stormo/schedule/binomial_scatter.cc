// Binomial-tree scatter and gather.
//
// Idea: with ranks counted from the root, a rank that holds the blocks of itself and of the next
// 2d - 1 ranks sends the second half of them to the rank d after it, for d falling. The gather is
// the same backwards. Cost: ceil(log2 n) rounds, the least possible; the root sends (n-1)/n K
// bytes, no more than it must, though a block passes through up to log2 n ranks: (K/2) log2 n bytes
// in all. Paper: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
// operations in MPICH", Int. J. High Performance Computing Applications 19(1), 2005, section 4.2.
#include <stormo/schedule/algorithms.h>

#include <algorithm>
#include <bit>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {

plan::Schedule binomial_scatter(int ranks, Rank root) {
  plan::Schedule s =
      without_rounds("binomial_scatter", {plan::GoalKind::kScatter, root}, ranks, ranks);
  const auto beyond = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks)));
  for (int d = beyond / 2; d >= 1; d /= 2) {
    plan::Round& round = s.rounds.emplace_back();
    for (int holder = 0; holder + d < ranks; holder += 2 * d) {
      for (int i = holder + d; i < std::min(holder + 2 * d, ranks); ++i) {
        round.push_back({.from = (root + holder) % ranks,
                         .to = (root + holder + d) % ranks,
                         .chunk = (root + i) % ranks,
                         .how = plan::ReceiveOp::kCopy});
      }
    }
  }
  return s;
}

plan::Schedule binomial_gather(int ranks, Rank root) {
  return with_goal(reversed(binomial_scatter(ranks, root), plan::ReceiveOp::kCopy),
                   "binomial_gather", {plan::GoalKind::kGather, root});
}

}  // namespace stormo::schedule
