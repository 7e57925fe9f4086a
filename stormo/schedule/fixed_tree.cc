// All-reduce over one fixed tree.
//
// Idea: a node of the tree over ranks adds the sum of its left half to that of its right one (see
// plan/logical_shards.h), for every chunk. Who holds the sum of a node differs from chunk to chunk:
// the rank that owns it, or one that is as far into the node as the owner is into its own place, so
// that all ranks send equally much. For a power of two this is recursive halving. Then owners send
// their chunk to all. If each rank has the sum of its leaves of a larger tree, the result has the
// bits of that tree, for every number of ranks.
// Cost: ceil(log2 n) rounds, in which a rank sends each chunk but its own once, and one round to
// gather; 2(n-1)/n K, as little as the ring. Unless n is a power of two some ranks receive up to a
// quarter more than they send. Paper: P. Balaji, D. Kimpe, "On the reproducibility of MPI reduction
// operations", HPCC 2013 (why the order of additions has to be independent of the ranks); the
// exchange is that of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
// communication operations in MPICH", 2005.
#include <stormo/schedule/algorithms.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <stormo/plan/logical_shards.h>
#include <stormo/schedule/compose.h>

namespace stormo::schedule {
namespace {

/// Who has the sum of a node, and in how many rounds.
struct NodeSum {
  Rank holder = 0;
  std::size_t rounds = 0;
};

/// Adds the transfers of one chunk up to the sum of ranks [first, first + count).
NodeSum add_up(plan::Schedule& s, plan::ChunkId chunk, Rank first, int count) {
  if (count == 1) return {first, 0};
  const int left = plan::left_of(count);
  const NodeSum l = add_up(s, chunk, first, left);
  const NodeSum r = add_up(s, chunk, first + left, count - left);
  const std::size_t round = std::max(l.rounds, r.rounds);
  if (s.rounds.size() <= round) s.rounds.resize(round + 1);
  const int place = ((chunk - first) % count + count) % count;
  const auto [from, to] =
      place < left ? std::pair(r.holder, l.holder) : std::pair(l.holder, r.holder);
  s.rounds[round].push_back({from, to, chunk, plan::ReceiveOp::kReduce});
  return {to, round + 1};
}

}  // namespace

plan::Schedule fixed_tree_all_reduce(int ranks) {
  plan::Schedule s =
      without_rounds(plan::kFixedTreeAllReduce, {plan::GoalKind::kAllReduce}, ranks, ranks);
  for (plan::ChunkId chunk = 0; chunk < ranks; ++chunk) add_up(s, chunk, 0, ranks);
  return with_goal(then(std::move(s), direct_all_gather(ranks)), plan::kFixedTreeAllReduce,
                   {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
