// Binomial-tree broadcast.
//
// Idea: in every round each rank that has the data sends it to one that has not, so that the number
// of holders doubles. Ranks are counted from the root.
// Cost: ceil(log2 n) rounds, the least possible; (n-1) K bytes in all, of which the root sends
// ceil(log2 n) K. Good for small buffers; a large one wants scatter and all-gather.
// Paper: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations
// in MPICH", Int. J. High Performance Computing Applications 19(1), 2005, section 4.2.
#include <stormo/schedule/binomial.h>

#include <algorithm>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>

namespace stormo::schedule {

plan::Schedule binomial_broadcast(int ranks, Rank root) {
  STORMO_CHECK(ranks >= 1 && ranks <= plan::kMaxRanks, "binomial: ranks out of range");
  STORMO_CHECK(root >= 0 && root < ranks, "binomial: root out of range");
  plan::Schedule s{"binomial_broadcast", {plan::GoalKind::kBroadcast, root}, ranks, 1, {}};
  for (int holders = 1; holders < ranks; holders *= 2) {
    plan::Round& round = s.rounds.emplace_back();
    for (int i = 0; i < std::min(holders, ranks - holders); ++i) {
      round.push_back({.from = (root + i) % ranks,
                       .to = (root + i + holders) % ranks,
                       .chunk = 0,
                       .how = plan::Combine::kCopy});
    }
  }
  return s;
}

}  // namespace stormo::schedule
