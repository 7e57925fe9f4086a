#include <stormo/protocol/gossip/pairs.h>

#include <stormo/base/rng.h>

namespace stormo::protocol {

int rank_to_ask(std::uint64_t seed, int ranks, int rank, std::int64_t step) {
  Rng rng(seed, "pairs", static_cast<std::uint64_t>(step * asking_ranks(ranks) + rank / 2));
  return 1 + 2 * static_cast<int>(rng.below(static_cast<std::uint64_t>(ranks) / 2));
}

}  // namespace stormo::protocol
