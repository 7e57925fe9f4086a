#include <stormo/analysis/schedule/fixed_tree.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <stormo/analysis/schedule/moves.h>
#include <stormo/analysis/schedule/reduction_order.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/logical_shards.h>

namespace stormo::analysis {
namespace {

Expression tree_over(const plan::ShardRange& leaves) {
  if (leaves.size() == 1) return term(leaves.first);
  const int middle = leaves.first + plan::left_of(leaves.size());
  return sum_of(tree_over({leaves.first, middle}), tree_over({middle, leaves.end}));
}

}  // namespace

Status verify_fixed_tree(const plan::Schedule& s, int shards) {
  if (!plan::reduces(s.goal.kind) || s.goal.kind == plan::GoalKind::kScan) {
    return plan::bad(s.name, " gives no sum of all ranks");
  }
  if (shards < s.ranks) {
    return plan::bad("there are fewer shards (", shards, ") than ranks (", s.ranks, ")");
  }
  std::vector<Expression> own;
  for (Rank r = 0; r < s.ranks; ++r) own.push_back(tree_over(plan::shards_of(shards, s.ranks, r)));
  const Expression all = tree_over({0, shards});
  const MovesByChunk moves(s);
  ReductionOrder order(s.ranks);
  for (plan::ChunkId chunk = 0; chunk < s.chunks; ++chunk) {
    order.start(own);
    const std::span<const Move> of_chunk = moves.of(chunk);
    for (std::size_t begin = 0, end = 0; begin < of_chunk.size(); begin = end) {
      while (end < of_chunk.size() && of_chunk[end].round == of_chunk[begin].round) ++end;
      order.play(of_chunk.subspan(begin, end - begin));
    }
    const auto target = plan::only_target(s, chunk);
    for (Rank r = 0; r < s.ranks; ++r) {
      if ((target && *target != r) || order.at(r) == all) continue;
      return plan::bad(s.name, ": rank ", r, " adds up chunk ", chunk,
                       " in another order than the tree of ", shards, " shards");
    }
  }
  return {};
}

}  // namespace stormo::analysis
