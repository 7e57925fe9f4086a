// Swing all-reduce.
//
// Idea: halving and doubling in which the peer of step s is not 2^s away but 1, -1, 3, -5, 11, ...:
// even ranks swing to the right where odd ranks swing to the left. The peers of later steps are a
// third nearer than a power of two on a ring or torus, where a message occupies every link it
// crosses. Of the two recent algorithms of this kind, Swing and Bine trees (arXiv 2508.17311), this
// is the one that needs nothing but another choice of peers; both move the same bytes in the same
// rounds, and Bine gains on trees of switches, where we use the hierarchical all-reduce.
// Cost: as halving_doubling_all_reduce; ranks beyond a power of two are folded. A rank's chunks are
// not consecutive, so a step is several messages.
// Paper: D. De Sensi, T. Bonato, D. Saam, T. Hoefler, "Swing: short-cutting rings for higher
// bandwidth allreduce", NSDI 2024 (arXiv 2401.09356).
#include <stormo/schedule/algorithms.h>

#include <bit>

#include <stormo/schedule/compose.h>
#include <stormo/schedule/fold.h>
#include <stormo/schedule/swap.h>

namespace stormo::schedule {
namespace {

Rank swing_peer(Rank rank, int step, int ranks) {
  int distance = 0;
  for (int power = 1, s = 0; s <= step; ++s, power *= -2) distance += power;
  const int target = rank % 2 == 0 ? rank + distance : rank - distance;
  return (target % ranks + ranks) % ranks;
}

/// `ranks`, a power of two, chunks; chunk r starts at rank r. The farthest peers come first.
plan::Schedule swing_all_gather(int ranks) {
  plan::Schedule s = without_rounds("swing_all_gather", {plan::GoalKind::kAllGather}, ranks, ranks);
  Holdings held(static_cast<std::size_t>(ranks));
  for (Rank r = 0; r < ranks; ++r) held[static_cast<std::size_t>(r)] = {r};
  const int steps = std::countr_zero(static_cast<unsigned>(ranks));
  s.rounds = swap_all(std::move(held), steps, [&](Rank rank, int step) {
    return swing_peer(rank, steps - 1 - step, ranks);
  });
  return s;
}

}  // namespace

plan::Schedule swing_all_reduce(int ranks) {
  const plan::Schedule gather = swing_all_gather(Fold(ranks).core);
  const plan::Schedule core = then(reversed(gather, plan::ReceiveOp::kReduce), gather);
  return with_goal(folded(core, ranks), "swing_all_reduce", {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
