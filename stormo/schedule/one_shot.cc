// One-shot all-reduce.
//
// Idea: everybody sends all it has to everybody, and everybody reduces for itself, in ascending
// order of rank, so that all get the same bits. Cost: 1 round, the least possible, but (n-1) K
// bytes sent and received by each rank: for tiny buffers, where the one latency is all that counts.
// Paper: none needed; it is the all-to-all broadcast that V. Bala et al., "CCL: a portable and
// tunable collective communication library", IEEE TPDS 6(2), 1995, combine in place.
#include <stormo/schedule/algorithms.h>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {

plan::Schedule one_shot_all_reduce(int ranks) {
  plan::Schedule s = without_rounds("one_shot_all_reduce", {plan::GoalKind::kAllReduce}, ranks, 1);
  if (ranks == 1) return s;
  plan::Round& round = s.rounds.emplace_back();
  for (Rank to = 0; to < ranks; ++to) {
    for (Rank from = 0; from < ranks; ++from) {
      if (from == to) continue;
      round.push_back({.from = from, .to = to, .chunk = 0, .how = plan::ReceiveOp::kReduce});
    }
  }
  return s;
}

}  // namespace stormo::schedule
