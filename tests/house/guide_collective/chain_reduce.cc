// Chain reduce.
//
// Idea: the data is cut into pieces that follow each other from rank to rank towards the root, and
// grow by every rank's term, so that all links work at once when there are many pieces. Cost: n-1 +
// pieces-1 rounds; every rank but the first sends K bytes. Paper: J. Watts, R. van de Geijn, "A
// pipelined broadcast for multidimensional meshes", Parallel Processing Letters 5(2), 1995,
// backwards.
#include <algorithm>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {

plan::Schedule chain_reduce(int ranks, Rank root, int pieces) {
  plan::Schedule s = without_rounds("chain_reduce", {plan::GoalKind::kReduce, root}, ranks, pieces);
  for (int step = 0; ranks > 1 && step < ranks - 1 + pieces - 1; ++step) {
    plan::Round& round = s.rounds.emplace_back();
    for (int i = std::max(0, step - pieces + 1); i <= std::min(step, ranks - 2); ++i) {
      round.push_back({.from = (root + ranks - 1 - i) % ranks,
                       .to = (root + ranks - 2 - i) % ranks,
                       .chunk = step - i,
                       .how = plan::ReceiveOp::kReduce});
    }
  }
  return s;
}

}  // namespace stormo::schedule
