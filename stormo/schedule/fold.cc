// Folding of ranks beyond a power of two.
//
// Idea: see the header. Cost: 2 rounds more; a guest sends and receives K bytes and nothing else,
// its host K bytes more each way. Paper: R. Rabenseifner, J. L. Traff, "More efficient reduction
// algorithms for non-power-of-two number of processors in message-passing parallel systems",
// EuroPVM/MPI 2004.
#include <stormo/schedule/fold.h>

#include <bit>
#include <vector>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>
#include <stormo/schedule/compose.h>

namespace stormo::schedule {

Fold::Fold(int ranks) {
  STORMO_CHECK(ranks >= 1 && ranks <= plan::kMaxRanks, "Fold: ranks out of range");
  core = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  num_guests = ranks - core;
}

plan::Schedule folded(const plan::Schedule& core, int ranks) {
  const Fold fold(ranks);
  STORMO_CHECK(core.ranks == fold.core, "folded: the core has the wrong number of ranks");
  std::vector<Rank> members;
  for (int i = 0; i < fold.core; ++i) members.push_back(fold.rank_of(i));
  plan::Schedule s =
      on_group(core, members, ranks, {.offset = 0, .width = 1, .chunks = core.chunks});
  if (fold.num_guests == 0) return s;
  plan::Round in, out;
  for (int i = 0; i < fold.num_guests; ++i) {
    for (plan::ChunkId c = 0; c < core.chunks; ++c) {
      in.push_back({.from = 2 * i + 1, .to = 2 * i, .chunk = c, .how = plan::ReceiveOp::kReduce});
      out.push_back({.from = 2 * i, .to = 2 * i + 1, .chunk = c, .how = plan::ReceiveOp::kCopy});
    }
  }
  s.rounds.insert(s.rounds.begin(), std::move(in));
  s.rounds.push_back(std::move(out));
  return s;
}

}  // namespace stormo::schedule
