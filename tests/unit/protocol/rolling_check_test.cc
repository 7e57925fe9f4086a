#include <stormo/protocol/rolling_check.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stormo::protocol {
namespace {

bool equal_by_sums(const std::vector<std::uint64_t>& hashes) {
  std::array<double, kHashNumbers> sums{};
  for (const std::uint64_t hash : hashes) {
    std::array<double, kHashNumbers> mine{};
    put_hash(hash, mine);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += mine[i];
  }
  return are_equal(sums, static_cast<int>(hashes.size()));
}

TEST(RollingCheck, EqualHashesAreEqualBySums) {
  for (const std::uint64_t hash :
       {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}, std::uint64_t{0x0123456789abcdef}}) {
    for (const std::size_t ranks : {1, 2, 3, 7, 1000}) {
      EXPECT_TRUE(equal_by_sums(std::vector<std::uint64_t>(ranks, hash))) << hash << " " << ranks;
    }
  }
}

TEST(RollingCheck, AnyBitOfAnyRankIsSeenInTheSums) {
  std::mt19937_64 random(5);
  for (const std::size_t ranks : {2, 3, 8, 1000}) {
    for (int bit = 0; bit < 64; ++bit) {
      std::vector<std::uint64_t> hashes(ranks, random());
      hashes[random() % ranks] ^= std::uint64_t{1} << bit;
      EXPECT_FALSE(equal_by_sums(hashes)) << ranks << " ranks, bit " << bit;
    }
  }
}

// Sums of pieces alone would be equal here.
TEST(RollingCheck, DifferencesThatCancelOutAreSeen) {
  EXPECT_FALSE(equal_by_sums({4, 6}));
  EXPECT_FALSE(equal_by_sums({5, 4, 6}));
  EXPECT_FALSE(equal_by_sums({0xffff, 0, 0xffff, 0}));
}

TEST(RollingCheck, SumsThatAreNoNumbersAreNotEqual) {
  std::array<double, kHashNumbers> sums{};
  for (const double wrong : {std::nan(""), std::numeric_limits<double>::infinity(), 0.5, -1.0}) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums = {};
      sums[i] = wrong;
      EXPECT_FALSE(are_equal(sums, 3)) << wrong;
    }
  }
}

TEST(RollingCheck, EachPassLooksAtEveryPieceOnce) {
  for (const std::int64_t steps : {1, 2, 7, 13}) {
    for (const std::size_t pieces : {0, 1, 2, 13, 14, 100}) {
      RollingCheck check(steps);
      for (int pass = 0; pass < 2; ++pass) {
        std::size_t next = 0;
        for (std::int64_t i = 0; i < steps; ++i) {
          EXPECT_EQ(check.begins(), i == 0);
          const RollingCheck::Slice slice = check.slice(pieces);
          EXPECT_EQ(slice.first, next);
          EXPECT_LE(slice.last - slice.first, pieces / static_cast<std::size_t>(steps) + 1);
          next = slice.last;
          check.end_step(0, 3);
        }
        EXPECT_EQ(next, pieces);
      }
      EXPECT_EQ(check.steps(), steps);
    }
  }
}

/// What a pass takes when each look at all of the state takes `look_s`.
std::int64_t found_steps(double look_s, double step_s, int ranks = 2) {
  RollingCheck check(RollingCheck::kAutomatic);
  for (int pass = 0; pass < 3; ++pass) {
    const auto steps = static_cast<double>(check.steps());
    do {
      check.note(look_s / steps, step_s);
      check.end_step(check.wanted() * ranks, ranks);
    } while (!check.begins());
  }
  return check.steps();
}

TEST(RollingCheck, APassTakesAsManyStepsAsItsCostAllows) {
  EXPECT_EQ(found_steps(/*look_s=*/0.124, /*step_s=*/1), 13);
  EXPECT_EQ(found_steps(0.126, 1), 13);
  EXPECT_EQ(found_steps(0.001, 1), 1);
  EXPECT_EQ(found_steps(9.995, 1), 1000);
}

TEST(RollingCheck, RanksTakeTheMeanOfWhatTheyWant) {
  RollingCheck check(RollingCheck::kAutomatic);
  for (std::int64_t i = 0; i < 100; ++i) check.end_step(4 + 9 + 8, 3);
  EXPECT_EQ(check.steps(), 7);
}

TEST(RollingCheck, ARestartBeginsAnotherPass) {
  RollingCheck check(4);
  check.end_step(0, 2);
  check.restart();
  EXPECT_TRUE(check.begins());
  EXPECT_EQ(check.slice(8), (RollingCheck::Slice{0, 2}));
}

TEST(FaultyRanks, TheThirdTimeWithinAThousandStepsIsNoChance) {
  FaultyRanks ranks;
  EXPECT_FALSE(ranks.note("a", 10));
  EXPECT_FALSE(ranks.note("b", 11));
  EXPECT_FALSE(ranks.note("a", 500));
  EXPECT_FALSE(ranks.note("a", 1010)) << "the first one was 1,000 steps ago";
  EXPECT_FALSE(ranks.note("b", 1011));
  EXPECT_TRUE(ranks.note("a", 1499));
}

}  // namespace
}  // namespace stormo::protocol
