#include <stormo/server/shard_layout.h>

#include <algorithm>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stormo::server {
namespace {

using testing::HasSubstr;

std::vector<ServedParameter> model() {
  return {{"a.weight", 100'000},          {"a.bias", 100}, {"b.weight", 70'001}, {"b.bias", 1},
          {"c", 50'000, DType::kFloat64}, {"empty", 0}};
}

class Placement : public testing::TestWithParam<PlacementRule> {};
INSTANTIATE_TEST_SUITE_P(All, Placement,
                         testing::Values(PlacementRule::kSliced, PlacementRule::kGreedy,
                                         PlacementRule::kRoundRobin),
                         [](const auto& test) {
                           return std::string(
                               placement_rule_names()[static_cast<std::size_t>(test.param)]);
                         });

TEST_P(Placement, CoversEveryElementOnce) {
  for (const int shards : {1, 2, 3, 5}) {
    const auto placed = place(model(), shards, GetParam()).take_or_throw();
    std::map<std::size_t, std::vector<std::pair<std::int64_t, std::int64_t>>> ranges;
    for (const auto& pieces : placed) {
      for (const ShardPiece& piece : pieces) {
        EXPECT_EQ(piece.dtype, model()[piece.parameter].dtype);
        ranges[piece.parameter].emplace_back(piece.begin, piece.end);
      }
    }
    ASSERT_EQ(ranges.size(), model().size());
    for (auto& [parameter, of] : ranges) {
      std::ranges::sort(of);
      std::int64_t end = 0;
      for (const auto& [first, last] : of) {
        EXPECT_EQ(first, end);
        end = last;
      }
      EXPECT_EQ(end, model()[parameter].elements);
    }
  }
}

TEST_P(Placement, RefusesMoreShardsThanPieces) {
  const std::vector<ServedParameter> two = {{"a", 10}, {"b", 10}};
  EXPECT_THAT(place(two, 3, GetParam()).status().message(),
              HasSubstr("3 servers, but the model's 2 parameters make pieces for 2 only"));
  EXPECT_FALSE(place(two, 0, GetParam()).ok());
}

std::vector<std::size_t> bytes_of(PlacementRule rule, int shards) {
  std::vector<std::size_t> out;
  for (const auto& pieces : place(model(), shards, rule).take_or_throw()) {
    out.push_back(0);
    for (const ShardPiece& piece : pieces) out.back() += piece.bytes();
  }
  return out;
}

TEST(Placement, SlicesAreBalanced) {
  const auto bytes = bytes_of(PlacementRule::kSliced, 4);
  const auto [least, most] = std::ranges::minmax(bytes);
  EXPECT_LT(static_cast<double>(most), 1.05 * static_cast<double>(least));
}

TEST(Placement, GreedyTakesTheLargestFirst) {
  // 400,000 B of c and of a.weight, 280,004 B of b.weight
  const auto bytes = bytes_of(PlacementRule::kGreedy, 3);
  EXPECT_EQ(std::ranges::max(bytes), 400'000u);
}

TEST(Placement, SmallParametersAreNotCut) {
  const auto placed =
      place(std::vector<ServedParameter>{{"a", 8192}, {"b", 4096}}, 2, PlacementRule::kSliced)
          .take_or_throw();
  // 32 KiB are two slices of 16 KiB
  ASSERT_EQ(placed[0].size() + placed[1].size(), 3u);
}

}  // namespace
}  // namespace stormo::server
