// Double binary tree all-reduce.
//
// Idea: in a binary tree half of the ranks are leaves, which send little. Two trees share the data;
// the leaves of one are the interior ranks of the other. Each tree reduces to its root and
// broadcasts from there, piece after piece, so that pieces follow each other up and down. The tree
// is the in-order one: with ranks counted from 1, rank i stands at the height of its lowest bit,
// and odd numbers are leaves. The second tree is the first moved on by one rank, for any n. Cost: 2
// floor(log2 n) + pieces - 1 rounds; 2(n-1) K bytes in all, of which no rank sends more than 2K
// (K/2 up and K down as interior rank, K/2 up as leaf): full bandwidth with logarithmic latency.
// Paper: P. Sanders, J. Speck, J. L. Traff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", Parallel Computing 35(12), 2009.
#include <stormo/schedule/algorithms.h>

#include <bit>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>
#include <stormo/schedule/compose.h>

namespace stormo::schedule {
namespace {

using plan::ReceiveOp;

/// Of place i in 1..n, not the root: the next number whose lowest bit is one higher, or if that is
/// beyond n, its parent.
int parent_of(int i, int n) {
  do {
    const int above = 2 * (i & -i);
    i = (i / above | 1) * above;
  } while (i > n);
  return i;
}

/// Appends what one tree does to `rounds`: place i is rank (i - 1 + shift) mod n.
class TreeWriter {
 public:
  TreeWriter(plan::Schedule& s, int shift, int first_chunk)
      : s_(s), shift_(shift), first_chunk_(first_chunk) {}

  /// The link from place i, which is `depth` steps below the root, to its parent.
  void add_link(int i, int depth, int height, int pieces) {
    const Rank child = rank_of(i), parent = rank_of(parent_of(i, s_.ranks));
    for (int piece = 0; piece < pieces; ++piece) {
      const plan::ChunkId chunk = first_chunk_ + piece;
      round(height - depth + piece).push_back({child, parent, chunk, ReceiveOp::kReduce});
      round(height + depth - 1 + piece).push_back({parent, child, chunk, ReceiveOp::kCopy});
    }
  }

 private:
  Rank rank_of(int i) const { return (i - 1 + shift_) % s_.ranks; }
  plan::Round& round(int number) { return s_.rounds[static_cast<std::size_t>(number)]; }

  plan::Schedule& s_;
  int shift_;
  int first_chunk_;
};

}  // namespace

plan::Schedule double_tree_all_reduce(int ranks, int pieces) {
  STORMO_CHECK(pieces >= 1 && pieces <= plan::kMaxChunks / 2, "double_tree: pieces out of range");
  plan::Schedule s =
      without_rounds("double_tree_all_reduce", {plan::GoalKind::kAllReduce}, ranks, 2 * pieces);
  if (ranks == 1) return s;
  const auto root = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  const int height = std::countr_zero(static_cast<unsigned>(root));
  s.rounds.resize(static_cast<std::size_t>(2 * height + pieces - 1));
  for (int tree = 0; tree < 2; ++tree) {
    TreeWriter writer(s, tree, tree * pieces);
    for (int i = 1; i <= ranks; ++i) {
      int depth = 0;
      for (int at = i; at != root; at = parent_of(at, ranks)) ++depth;
      if (depth > 0) writer.add_link(i, depth, height, pieces);
    }
  }
  return s;
}

}  // namespace stormo::schedule
