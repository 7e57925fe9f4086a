#include <stormo/plan/computing_ranks.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace stormo::plan {
namespace {

/// Gives the shards of a node to its ranks; `out` and `computes` are theirs.
void divide(ShardRange node, std::span<const char> computes, std::span<ShardRange> out) {
  if (node.size() == 0) return;
  if (computes.size() == 1) {
    out.front() = node;
    return;
  }
  const auto left = static_cast<std::size_t>(left_of(static_cast<int>(computes.size())));
  const auto any = [](std::span<const char> ranks) {
    return std::ranges::find(ranks, char{1}) != ranks.end();
  };
  int middle = node.first + left_of(node.size());
  if (!any(computes.subspan(left))) middle = node.end;
  if (!any(computes.first(left))) middle = node.first;
  divide({node.first, middle}, computes.first(left), out.first(left));
  divide({middle, node.end}, computes.subspan(left), out.subspan(left));
}

}  // namespace

std::vector<ShardRange> shards_of_computing(int shards, const std::vector<bool>& computes) {
  const std::vector<char> ranks(computes.begin(), computes.end());
  std::vector<ShardRange> out(ranks.size());
  divide({0, shards}, ranks, out);
  return out;
}

int most_of(const std::vector<ShardRange>& shards) {
  return std::ranges::max(shards, {}, &ShardRange::size).size();
}

}  // namespace stormo::plan
