#include <stormo/protocol/gossip/push_sum.h>

#include <algorithm>

#include <stormo/base/index.h>

namespace stormo::protocol {

PushSum::PushSum(int ranks, double value) : links_(at(ranks)), value_(value) {}

// What the division leaves stays here, so that no unit is lost.
std::vector<std::pair<int, PushSum::Push>> PushSum::push(std::span<const int> to) {
  std::vector<std::pair<int, Push>> out;
  const auto live = static_cast<std::uint64_t>(
      std::ranges::count_if(to, [&](int r) { return !links_[at(r)].lost; }));
  const std::uint64_t share = weight_ / (live + 1);
  const double part =
      weight_ == 0 ? 0 : value_ * (static_cast<double>(share) / static_cast<double>(weight_));
  for (const int rank : to) {
    Link& link = links_[at(rank)];
    if (link.lost) continue;
    weight_ -= share;
    value_ -= part;
    ++link.given.number;
    link.given.weight += share;
    link.given.value += part;
    out.emplace_back(rank, link.given);
  }
  return out;
}

void PushSum::receive(int from, const Push& push) {
  Link& link = links_[at(from)];
  if (link.lost || push.number <= link.taken.number) return;
  weight_ += push.weight - link.taken.weight;
  value_ += push.value - link.taken.value;
  link.taken = push;
}

void PushSum::lose(int rank) { links_[at(rank)].lost = true; }

std::int64_t PushSum::balance(int rank) const {
  const Link& link = links_[at(rank)];
  return static_cast<std::int64_t>(link.given.weight - link.taken.weight);
}

}  // namespace stormo::protocol
