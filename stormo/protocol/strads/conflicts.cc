#include <stormo/protocol/strads/conflicts.h>

#include <algorithm>
#include <numeric>

namespace stormo::protocol {

Result<Conflicts> Conflicts::of(std::int64_t blocks, std::span<const Pair> pairs) {
  Conflicts out;
  out.begins_.assign(static_cast<std::size_t>(blocks) + 1, 0);
  const auto known = [blocks](std::int32_t block) { return block >= 0 && block < blocks; };
  for (const auto [a, b] : pairs) {
    if (!known(a) || !known(b) || a == b) {
      return invalid_argument("a conflict is between two different blocks that exist");
    }
    ++out.begins_[static_cast<std::size_t>(a) + 1];
    ++out.begins_[static_cast<std::size_t>(b) + 1];
  }
  std::partial_sum(out.begins_.begin(), out.begins_.end(), out.begins_.begin());
  out.others_.resize(2 * pairs.size());
  std::vector<std::int64_t> next(out.begins_.begin(), out.begins_.end() - 1);
  const auto put = [&](std::int32_t at, std::int32_t other) {
    out.others_[static_cast<std::size_t>(next[static_cast<std::size_t>(at)]++)] = other;
  };
  for (const auto [a, b] : pairs) {
    put(a, b);
    put(b, a);
  }
  for (std::int64_t block = 0; block < blocks; ++block) {
    const auto at = static_cast<std::size_t>(block);
    const auto begin = out.others_.begin() + out.begins_[at];
    const auto end = out.others_.begin() + out.begins_[at + 1];
    std::sort(begin, end);
    if (std::adjacent_find(begin, end) != end) {
      return invalid_argument("a conflict is given twice");
    }
  }
  return out;
}

std::span<const std::int32_t> Conflicts::of_block(std::int64_t block) const {
  if (begins_.empty()) return {};
  const auto at = static_cast<std::size_t>(block);
  return std::span(others_).subspan(static_cast<std::size_t>(begins_[at]),
                                    static_cast<std::size_t>(begins_[at + 1] - begins_[at]));
}

std::vector<Conflicts::Pair> Conflicts::all_pairs() const {
  std::vector<Pair> all;
  for (std::int64_t block = 0; block + 1 < std::ssize(begins_); ++block) {
    const auto a = static_cast<std::int32_t>(block);
    for (const std::int32_t b : of_block(block)) {
      if (a < b) all.push_back({a, b});
    }
  }
  return all;
}

}  // namespace stormo::protocol
