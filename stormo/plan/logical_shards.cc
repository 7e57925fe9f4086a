#include <stormo/plan/logical_shards.h>

#include <algorithm>

namespace stormo::plan {

ShardRange shards_of(int shards, int ranks, Rank rank) {
  ShardRange node{0, shards};
  while (ranks > 1) {
    const int left_shards = left_of(node.size()), left_ranks = left_of(ranks);
    if (rank < left_ranks) {
      node.end = node.first + left_shards;
      ranks = left_ranks;
    } else {
      node.first += left_shards;
      rank -= left_ranks;
      ranks -= left_ranks;
    }
  }
  return node;
}

int most_shards(int shards, int ranks) {
  int most = 0;
  for (Rank r = 0; r < ranks; ++r) most = std::max(most, shards_of(shards, ranks, r).size());
  return most;
}

int nodes_complete_with(int leaves, int leaf) {
  int complete = 0;
  for (ShardRange node{0, leaves}; node.size() > 1;) {
    if (leaf + 1 == node.end) ++complete;
    const int middle = node.first + left_of(node.size());
    leaf < middle ? node.end = middle : node.first = middle;
  }
  return complete;
}

}  // namespace stormo::plan
