// Direct and pairwise all-to-all.
//
// Idea: every rank sends each of its blocks straight to its addressee; direct all at once, pairwise
// in rounds: in round k to the rank k to its right, so that every rank has one message to send and
// one to receive at a time and no receiver is flooded.
// Cost: direct 1 round, pairwise n-1 rounds; each rank sends and receives n-1 blocks of K/n^2
// bytes, K being the blocks of all ranks: the least possible. Paper: R. Thakur, R. Rabenseifner, W.
// Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Performance
// Computing Applications 19(1), 2005, section 4.4.
#include <stormo/schedule/algorithms.h>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>
#include <stormo/schedule/compose.h>

namespace stormo::schedule {
namespace {

plan::Schedule start(const char* name, int ranks) {
  STORMO_CHECK(ranks >= 1 && ranks <= plan::kMaxChunks / ranks, "all_to_all: ranks out of range");
  return without_rounds(name, {plan::GoalKind::kAllToAll}, ranks, ranks * ranks);
}

plan::Transfer block(Rank from, Rank to, int ranks) {
  return {.from = from, .to = to, .chunk = from * ranks + to, .how = plan::ReceiveOp::kCopy};
}

}  // namespace

plan::Schedule direct_all_to_all(int ranks) {
  plan::Schedule s = start("direct_all_to_all", ranks);
  if (ranks == 1) return s;
  plan::Round& round = s.rounds.emplace_back();
  for (Rank from = 0; from < ranks; ++from) {
    for (Rank to = 0; to < ranks; ++to) {
      if (from != to) round.push_back(block(from, to, ranks));
    }
  }
  return s;
}

plan::Schedule pairwise_all_to_all(int ranks) {
  plan::Schedule s = start("pairwise_all_to_all", ranks);
  for (int distance = 1; distance < ranks; ++distance) {
    plan::Round& round = s.rounds.emplace_back();
    for (Rank r = 0; r < ranks; ++r) round.push_back(block(r, (r + distance) % ranks, ranks));
  }
  return s;
}

}  // namespace stormo::schedule
