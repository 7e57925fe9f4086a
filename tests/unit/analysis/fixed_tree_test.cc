#include <stormo/analysis/schedule/fixed_tree.h>

#include <gtest/gtest.h>
#include <stormo/analysis/schedule/cost.h>
#include <stormo/analysis/schedule/verify.h>
#include <stormo/plan/logical_shards.h>
#include <stormo/schedule/builders.h>

#include <bit>
#include <string>
#include <utility>
#include <vector>

namespace stormo::analysis {
namespace {

using plan::Schedule;

TEST(FixedTree, EachNumberOfRanksAddsUpOverTheTreeOfAllShards) {
  std::vector<std::pair<int, int>> cases = {{1000, 1}, {1000, 7}, {1000, 100}, {128, 128}};
  for (int shards = 1; shards <= 33; ++shards) {
    for (int ranks = 1; ranks <= shards; ++ranks) cases.emplace_back(shards, ranks);
  }
  for (const auto& [shards, ranks] : cases) {
    const Schedule s = schedule::fixed_tree_all_reduce(ranks);
    EXPECT_TRUE(verify(s).ok()) << ranks;
    const Status st = verify_fixed_tree(s, shards);
    EXPECT_TRUE(st.ok()) << shards << " shards, " << ranks << " ranks: " << st.to_string();
  }
}

// The test above is worth something: no other algorithm has this order for each number of ranks.
TEST(FixedTree, OtherOrdersAreRefused) {
  int refused = 0;
  for (const schedule::Builder& b : schedule::builders()) {
    if (b.goal != plan::GoalKind::kAllReduce || b.name == plan::kFixedTreeAllReduce) continue;
    int built = 0, others = 0;
    for (const int ranks : {5, 6, 7}) {
      const auto s = b.build(ranks);
      if (!s.ok()) continue;
      ++built;
      if (!verify_fixed_tree(*s, 8).ok()) ++others;
    }
    EXPECT_TRUE(built == 0 || others > 0) << b.name;
    refused += others;
  }
  EXPECT_GE(refused, 10);
  EXPECT_EQ(verify_fixed_tree(schedule::direct_all_reduce(4), 8).message(),
            "direct_all_reduce: rank 0 adds up chunk 0 in another order than the tree of 8 shards");
}

TEST(FixedTree, EachSumThatGoesAnotherWayIsFound) {
  const Schedule tree = schedule::fixed_tree_all_reduce(6);
  int changed = 0, valid = 0;
  for (std::size_t round = 0; round + 2 < tree.rounds.size(); ++round) {
    for (std::size_t i = 0; i < tree.rounds[round].size(); ++i) {
      Schedule other = tree;  // this sum is made a round later, with what is there by then
      const plan::Transfer moved = other.rounds[round][i];
      other.rounds[round].erase(other.rounds[round].begin() + static_cast<std::ptrdiff_t>(i));
      other.rounds[round + 1].push_back(moved);
      ++changed;
      if (!verify(other).ok()) continue;
      ++valid;
      EXPECT_FALSE(verify_fixed_tree(other, 8).ok()) << to_text(other);
    }
  }
  EXPECT_GT(changed, 20);
  EXPECT_GT(valid, 0);
}

TEST(FixedTree, ItIsForSumsOfAllRanksAndEnoughShards) {
  EXPECT_EQ(verify_fixed_tree(schedule::ring_all_gather(3), 4).message(),
            "ring_all_gather gives no sum of all ranks");
  EXPECT_EQ(verify_fixed_tree(schedule::chain_scan(3), 4).message(),
            "chain_scan gives no sum of all ranks");
  EXPECT_EQ(verify_fixed_tree(schedule::fixed_tree_all_reduce(3), 2).message(),
            "there are fewer shards (2) than ranks (3)");
}

/// 2(n-1)/n K for each rank, in ceil(log2 n) + 1 rounds.
TEST(FixedTree, AllRanksSendAsLittleAsOnARing) {
  for (int n = 2; n <= 40; ++n) {
    const std::int64_t k = 1000 * n;
    const Cost c = cost(schedule::fixed_tree_all_reduce(n), k);
    EXPECT_EQ(c.rounds, std::bit_width(static_cast<unsigned>(n - 1)) + 1);
    EXPECT_EQ(c.max_bytes_sent, 2 * (n - 1) * 1000) << n;
    EXPECT_EQ(c.total_bytes, 2 * n * (n - 1) * 1000) << n;
    const bool is_power = std::has_single_bit(static_cast<unsigned>(n));
    EXPECT_EQ(c.max_bytes_received == c.max_bytes_sent, is_power) << n;
    EXPECT_LE(4 * c.max_bytes_received, 5 * c.max_bytes_sent) << n;
  }
}

}  // namespace
}  // namespace stormo::analysis
