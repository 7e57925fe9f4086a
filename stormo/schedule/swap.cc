#include <stormo/schedule/swap.h>

#include <algorithm>
#include <iterator>

namespace stormo::schedule {

std::vector<plan::Round> swap_all(Holdings held, int steps,
                                  const std::function<Rank(Rank, int)>& peer) {
  std::vector<plan::Round> rounds;
  for (int step = 0; step < steps; ++step) {
    plan::Round& round = rounds.emplace_back();
    Holdings next = held;
    for (std::size_t i = 0; i < held.size(); ++i) {
      const auto rank = static_cast<Rank>(i);
      const Rank other = peer(rank, step);
      for (const plan::ChunkId c : held[i]) {
        round.push_back({.from = rank, .to = other, .chunk = c, .how = plan::ReceiveOp::kCopy});
      }
      std::vector<plan::ChunkId>& merged = next[static_cast<std::size_t>(other)];
      const auto middle = static_cast<std::ptrdiff_t>(merged.size());
      std::ranges::copy(held[i], std::back_inserter(merged));
      std::ranges::inplace_merge(merged, merged.begin() + middle);
    }
    held = std::move(next);
  }
  return rounds;
}

}  // namespace stormo::schedule
