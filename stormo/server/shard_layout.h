#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/dtype.h>
#include <stormo/base/status.h>

namespace stormo::server {

/// Size and type of a parameter that servers hold.
struct ServedParameter {
  std::string name;
  std::int64_t elements = 0;
  DType dtype = DType::kFloat32;  ///< kFloat32 or kFloat64
};

/// A range of a parameter's elements, in C order, which lies on one shard.
struct ShardPiece {
  std::size_t parameter = 0;  ///< index into the list of parameters
  std::int64_t begin = 0, end = 0;
  DType dtype = DType::kFloat32;
  bool operator==(const ShardPiece&) const = default;
  std::int64_t elements() const { return end - begin; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
};

/// The bytes of a piece, rounded up to a cache line: arrays of pieces lie at such distances.
std::size_t aligned_bytes(const ShardPiece& piece);

/// How parameters are placed on shards.
enum class PlacementRule : std::uint8_t {
  kSliced,      ///< each parameter is cut into equal slices, one for each shard, see place()
  kGreedy,      ///< whole parameters, the largest first, each on the shard with the fewest bytes
  kRoundRobin,  ///< whole parameters, in turns
};

/// Names in the order of PlacementRule.
const std::vector<std::string_view>& placement_rule_names();

/// How pushes change the weights of a shard.
enum class ShardUpdates : std::uint8_t {
  kVersions,  ///< each writes a new version of the whole shard, see SharedShard
  kInPlace,   ///< elements change where they are, without a lock or version, see InPlaceShard
};

/// Names in the order of ShardUpdates.
const std::vector<std::string_view>& shard_updates_names();

/// The pieces of each shard. They cover every element once. kSliced makes no slice of less than
/// `min_slice_bytes`: small parameters lie on fewer shards, in turns. kInvalidArgument if there are
/// fewer pieces than shards, so that a shard would be empty.
Result<std::vector<std::vector<ShardPiece>>> place(std::span<const ServedParameter> parameters,
                                                   int shards, PlacementRule rule,
                                                   std::int64_t min_slice_bytes = 16384);

}  // namespace stormo::server
