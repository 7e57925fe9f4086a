#include <stormo/plan/computing_ranks.h>
#include <stormo/plan/logical_shards.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

namespace stormo::plan {
namespace {

/// The definition, as a text: "((0+1)+2)".
std::string tree_over(int first, int end) {
  if (end - first == 1) return std::to_string(first);
  const int middle = first + (end - first + 1) / 2;
  return "(" + tree_over(first, middle) + "+" + tree_over(middle, end) + ")";
}

/// What is left after the leaves [first, end) of a tree of their own, one after the other.
std::string added_one_by_one(int first, int end) {
  std::vector<std::string> left;
  for (int leaf = first; leaf < end; ++leaf) {
    left.push_back(std::to_string(leaf));
    for (int n = nodes_complete_with(end - first, leaf - first); n > 0; --n) {
      const std::string last = left.back();
      left.pop_back();
      left.back() = "(" + left.back() + "+" + last + ")";
    }
  }
  EXPECT_EQ(left.size(), 1u);
  return left.front();
}

/// The tree over the ranks' sums, which depends on their number alone.
std::string over_ranks(const std::vector<std::string>& sums) {
  if (sums.size() == 1) return sums.front();
  const auto middle = sums.begin() + (std::ssize(sums) + 1) / 2;
  return "(" + over_ranks({sums.begin(), middle}) + "+" + over_ranks({middle, sums.end()}) + ")";
}

TEST(LogicalShards, RanksHaveAllOfThemInOrderAndEachAtLeastOne) {
  for (int shards = 1; shards <= 40; ++shards) {
    for (int ranks = 1; ranks <= shards; ++ranks) {
      int next = 0, most = 0;
      for (Rank r = 0; r < ranks; ++r) {
        const ShardRange own = shards_of(shards, ranks, r);
        EXPECT_EQ(own.first, next);
        EXPECT_GE(own.size(), 1) << shards << " shards, rank " << r << " of " << ranks;
        next = own.end;
        most = std::max(most, own.size());
      }
      EXPECT_EQ(next, shards);
      EXPECT_EQ(most_shards(shards, ranks), most);
      EXPECT_LE(most, (2 * shards + ranks - 1) / ranks) << shards << " shards, " << ranks;
    }
  }
}

TEST(LogicalShards, AnyNumberOfRanksAddsUpOverTheSameTree) {
  EXPECT_EQ(tree_over(0, 6), "(((0+1)+2)+((3+4)+5))");
  for (int shards = 1; shards <= 24; ++shards) {
    for (int ranks = 1; ranks <= shards; ++ranks) {
      std::vector<std::string> sums;
      for (Rank r = 0; r < ranks; ++r) {
        const ShardRange own = shards_of(shards, ranks, r);
        sums.push_back(added_one_by_one(own.first, own.end));
      }
      EXPECT_EQ(over_ranks(sums), tree_over(0, shards)) << ranks << " ranks";
    }
  }
}

/// As over_ranks(), where "" is the sum of a rank that computes nothing, which changes no other.
std::string over_computing(const std::vector<std::string>& sums) {
  if (sums.size() == 1) return sums.front();
  const auto middle = sums.begin() + (std::ssize(sums) + 1) / 2;
  const std::string left = over_computing({sums.begin(), middle});
  const std::string right = over_computing({middle, sums.end()});
  if (left.empty() || right.empty()) return left + right;
  return "(" + left + "+" + right + ")";
}

TEST(LogicalShards, RanksThatComputeNothingDoNotChangeTheTree) {
  for (unsigned ranks = 1; ranks <= 6; ++ranks) {
    for (unsigned some = 1; some < 1u << ranks; ++some) {
      std::vector<bool> computes;
      for (unsigned r = 0; r < ranks; ++r) computes.push_back((some >> r & 1) != 0);
      for (int shards = 1; shards <= 13; ++shards) {
        const std::vector<ShardRange> all = shards_of_computing(shards, computes);
        std::vector<std::string> sums;
        int most = 0;
        for (unsigned r = 0; r < ranks; ++r) {
          const ShardRange own = all[r];
          EXPECT_TRUE(computes[r] || own.size() == 0);
          sums.push_back(own.size() == 0 ? "" : added_one_by_one(own.first, own.end));
          most = std::max(most, own.size());
        }
        EXPECT_EQ(over_computing(sums), tree_over(0, shards)) << ranks << " ranks, " << some;
        EXPECT_EQ(most_of(all), most);
      }
    }
  }
}

TEST(LogicalShards, IfAllRanksComputeTheyHaveTheirOwn) {
  for (int shards = 1; shards <= 24; ++shards) {
    for (int ranks = 1; ranks <= shards; ++ranks) {
      const std::vector<bool> computes(static_cast<std::size_t>(ranks), true);
      const std::vector<ShardRange> all = shards_of_computing(shards, computes);
      for (Rank r = 0; r < ranks; ++r) {
        EXPECT_EQ(all[static_cast<std::size_t>(r)], shards_of(shards, ranks, r));
      }
    }
  }
}

TEST(LogicalShards, AsManySumsAreLeftAsTheTreeIsHigh) {
  for (int shards = 1; shards <= 64; ++shards) {
    int left = 0, most = 0;
    for (int leaf = 0; leaf < shards; ++leaf) {
      most = std::max(most, ++left);
      left -= nodes_complete_with(shards, leaf);
    }
    EXPECT_EQ(left, 1);
    EXPECT_LE(most, std::bit_width(static_cast<unsigned>(shards - 1)) + 1) << shards;
  }
}

TEST(LogicalShards, SamplesAreSharedAsEvenlyAsPossible) {
  for (const std::int64_t batch : {0, 1, 5, 8, 23, 64}) {
    for (const int shards : {1, 3, 8}) {
      std::int64_t sum = 0;
      for (int s = 0; s < shards; ++s) {
        const std::int64_t own = samples_of_shard(batch, shards, s);
        EXPECT_TRUE(own == batch / shards || own == batch / shards + 1);
        EXPECT_LE(own, samples_of_shard(batch, shards, std::max(s - 1, 0)));
        sum += own;
      }
      EXPECT_EQ(sum, batch);
    }
  }
}

}  // namespace
}  // namespace stormo::plan
