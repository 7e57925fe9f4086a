#include <stormo/protocol/elastic/average_history.h>

#include <algorithm>
#include <string>

#include <stormo/base/rng.h>

namespace stormo::protocol {

// Of one step there may be two in a row, of two epochs.
void AverageHistory::take(const AverageId& average) {
  if (average.step != last.step) before = last;
  last = average;
}

std::uint64_t AverageHistory::hash_after(std::uint64_t step) const {
  const AverageId& average = last.step < step ? last : before;
  return fnv1a("step " + std::to_string(step) + ", average of step " +
               std::to_string(average.step) + " in epoch " + std::to_string(average.epoch)) |
         1;
}

std::int64_t taken_behind(std::uint64_t step, const AverageHistory& history) {
  return history.last.step == step ? std::int64_t{history.last.epoch} + 1 : kHasNotTaken;
}

AverageId average_of(std::int64_t taken, std::uint64_t step) {
  return {.epoch = static_cast<Epoch>(taken - 1), .step = step};
}

Settlement settle(std::span<const std::int64_t> taken) {
  const auto first = std::ranges::find_if(taken, [](std::int64_t n) { return n > kHasNotTaken; });
  if (first == taken.end()) return {.is_made_anew = true};
  const bool all_have =
      std::ranges::all_of(taken, [&](std::int64_t n) { return n == kHasNoState || n == *first; });
  if (all_have) return {};
  return {.from = static_cast<std::size_t>(first - taken.begin())};
}

}  // namespace stormo::protocol
