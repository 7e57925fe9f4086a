#pragma once

#include <cstdint>

#include <stormo/base/ids.h>

namespace stormo::plan {

// Logical shards: the global batch is cut into V shards, and what they give (gradients, losses) is
// added up over one binary tree of V leaves, whoever computes them. A node over n leaves adds the
// sum of its first left_of(n) leaves and that of the others. p <= n ranks have such a node together
// by the same rule: left_of(p) of them have the left part. One rank alone has all of its leaves. So
// each rank has one node, adds up its own leaves over the tree below, and the ranks go on above: by
// a tree of the same form, which depends on their number alone. The sum has the same bits for each
// number of ranks.

/// How many of n leaves, or ranks, are in the left part; n >= 2.
constexpr int left_of(int n) { return n - n / 2; }

/// A plan has at most so many.
inline constexpr int kMaxShards = 65536;

/// Consecutive shards [first, end).
struct ShardRange {
  int first = 0;
  int end = 0;
  int size() const { return end - first; }
  bool operator==(const ShardRange&) const = default;
};

/// Those of a rank; 0 <= rank < ranks <= shards.
ShardRange shards_of(int shards, int ranks, Rank rank);
/// The most that a rank has: at most 2 shards / ranks, rounded up.
int most_shards(int shards, int ranks);

/// How many samples of a global batch are in a shard. The first shards have one more.
constexpr std::int64_t samples_of_shard(std::int64_t batch, int shards, int shard) {
  return batch / shards + (shard < batch % shards ? 1 : 0);
}
/// How many nodes of the tree over n leaves are complete with this leaf, and were not before. Each
/// is the sum of the last two nodes that are complete and not added up yet.
int nodes_complete_with(int leaves, int leaf);

/// The builder of the schedule by which ranks add up over the tree.
inline constexpr const char* kFixedTreeAllReduce = "fixed_tree_all_reduce";

}  // namespace stormo::plan
