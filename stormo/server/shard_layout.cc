#include <stormo/server/shard_layout.h>

#include <algorithm>
#include <numeric>

#include <stormo/server/aligned.h>

namespace stormo::server {
namespace {

constexpr std::int64_t kCacheLine = 64;

using Shards = std::vector<std::vector<ShardPiece>>;

std::int64_t bytes_of(const ServedParameter& p) {
  return p.elements * static_cast<std::int64_t>(size_of(p.dtype));
}

ShardPiece whole(std::span<const ServedParameter> parameters, std::size_t i) {
  return {.parameter = i, .begin = 0, .end = parameters[i].elements, .dtype = parameters[i].dtype};
}

void place_round_robin(std::span<const ServedParameter> parameters, Shards& shards) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    shards[i % shards.size()].push_back(whole(parameters, i));
  }
}

void place_greedy(std::span<const ServedParameter> parameters, Shards& shards) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t i) { return bytes_of(parameters[i]); });
  std::vector<std::int64_t> bytes(shards.size());
  for (const std::size_t i : order) {
    const auto least = static_cast<std::size_t>(std::ranges::min_element(bytes) - bytes.begin());
    shards[least].push_back(whole(parameters, i));
    bytes[least] += bytes_of(parameters[i]);
  }
  for (auto& pieces : shards) std::ranges::sort(pieces, {}, &ShardPiece::parameter);
}

void place_sliced(std::span<const ServedParameter> parameters, std::int64_t min_bytes,
                  Shards& shards) {
  std::size_t next = 0;  // shard
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ServedParameter& p = parameters[i];
    const std::int64_t slices =
        std::clamp<std::int64_t>(bytes_of(p) / min_bytes, 1, std::ssize(shards));
    const std::int64_t line = kCacheLine / static_cast<std::int64_t>(size_of(p.dtype));
    const auto cut = [&](std::int64_t slice) {
      return std::min(p.elements, (p.elements * slice / slices + line - 1) / line * line);
    };
    for (std::int64_t s = 0; s < slices; ++s, next = (next + 1) % shards.size()) {
      const ShardPiece piece{.parameter = i, .begin = cut(s), .end = cut(s + 1), .dtype = p.dtype};
      if (piece.elements() > 0 || slices == 1) shards[next].push_back(piece);
    }
  }
}

}  // namespace

std::size_t aligned_bytes(const ShardPiece& piece) { return aligned(piece.bytes()); }

const std::vector<std::string_view>& placement_rule_names() {
  static const std::vector<std::string_view> names = {"sliced", "greedy", "round_robin"};
  return names;
}

const std::vector<std::string_view>& shard_updates_names() {
  static const std::vector<std::string_view> names = {"versions", "in_place"};
  return names;
}

Result<Shards> place(std::span<const ServedParameter> parameters, int shards, PlacementRule rule,
                     std::int64_t min_slice_bytes) {
  if (shards < 1 || min_slice_bytes < 1) {
    return invalid_argument("parameters are placed on at least 1 shard, in slices of at least 1 B");
  }
  Shards out(static_cast<std::size_t>(shards));
  switch (rule) {
    case PlacementRule::kSliced: place_sliced(parameters, min_slice_bytes, out); break;
    case PlacementRule::kGreedy: place_greedy(parameters, out); break;
    case PlacementRule::kRoundRobin: place_round_robin(parameters, out); break;
  }
  const auto used = std::ranges::count_if(out, [](const auto& pieces) { return !pieces.empty(); });
  if (used < shards) {
    return invalid_argument(std::to_string(shards) + " servers, but the model's " +
                            std::to_string(parameters.size()) + " parameters make pieces for " +
                            std::to_string(used) + " only; use fewer servers" +
                            (rule == PlacementRule::kSliced ? "" : ", or sliced placement"));
  }
  return out;
}

}  // namespace stormo::server
