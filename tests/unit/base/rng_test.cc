#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <stormo/base/rng.h>

namespace stormo {
namespace {

using Words4 = std::array<std::uint32_t, 4>;
using Words2 = std::array<std::uint32_t, 2>;

// Known answers that Random123 publishes for Philox4x32-10.
TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_EQ(philox4x32(Words4{0, 0, 0, 0}, Words2{0, 0}),
            (Words4{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  constexpr std::uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(philox4x32(Words4{kOnes, kOnes, kOnes, kOnes}, Words2{kOnes, kOnes}),
            (Words4{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32(Words4{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                       Words2{0xa4093822u, 0x299f31d0u}),
            (Words4{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Fnv1a, MatchesThePublishedVectors) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8ull);
}

std::vector<std::uint32_t> draw(Rng rng, int n) {
  std::vector<std::uint32_t> out;
  for (int i = 0; i < n; ++i) out.push_back(rng.next_u32());
  return out;
}

TEST(Rng, AStreamIsAFunctionOfItsName) {
  EXPECT_EQ(draw(Rng(7, "shuffle", 3), 33), draw(Rng(7, "shuffle", 3), 33));
  EXPECT_NE(draw(Rng(7, "shuffle", 3), 33), draw(Rng(8, "shuffle", 3), 33));
  EXPECT_NE(draw(Rng(7, "shuffle", 3), 33), draw(Rng(7, "shuffle", 4), 33));
  EXPECT_NE(draw(Rng(7, "shuffle", 3), 33), draw(Rng(7, "dropout", 3), 33));
}

TEST(Rng, SixtyFourBitsAreTwoDrawsLowFirst) {
  Rng wide(1, "x"), narrow(1, "x");
  for (int i = 0; i < 9; ++i) {
    const std::uint64_t low = narrow.next_u32();
    const std::uint64_t high = narrow.next_u32();
    EXPECT_EQ(wide.next_u64(), low | (high << 32));
  }
}

TEST(Rng, BelowStaysBelowAndReachesEverything) {
  Rng rng(5, "below");
  for (const std::uint64_t bound : {1ull, 2ull, 3ull, 7ull, 10ull}) {
    std::vector<int> seen(bound, 0);
    for (int i = 0; i < 1000; ++i) {
      const std::uint64_t x = rng.below(bound);
      ASSERT_LT(x, bound);
      ++seen[x];
    }
    EXPECT_THAT(seen, testing::Each(testing::Gt(0)));
  }
  for (int i = 0; i < 100; ++i) EXPECT_LT(rng.below(UINT64_MAX), UINT64_MAX);
}

TEST(Rng, UniformHasTheMomentsOfTheUniformDistribution) {
  Rng rng(11, "uniform");
  constexpr int kDraws = 20000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.uniform();
    ASSERT_GE(x, 0.0);
    ASSERT_LT(x, 1.0);
    sum += x;
    squares += x * x;
  }
  // mean 1/2 with deviation sqrt(1/12/n), mean square 1/3 with sqrt(4/45/n): six deviations
  EXPECT_NEAR(sum / kDraws, 1.0 / 2, 6 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 6 * std::sqrt(4.0 / 45 / kDraws));
}

TEST(Permutation, HoldsEveryNumberOnce) {
  for (const std::size_t n : {0u, 1u, 2u, 3u, 13u, 100u, 1021u}) {
    std::vector<std::int64_t> order(n), expected(n);
    Rng rng(3, "permutation", n);
    permutation(rng, order);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_TRUE(n < 13 || order != expected);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, expected);
  }
}

TEST(Permutation, EveryOrderOfThreeIsAboutEquallyLikely) {
  constexpr int kDraws = 6000;
  std::array<int, 27> count{};
  Rng rng(17, "orders");
  for (int i = 0; i < kDraws; ++i) {
    std::array<std::int64_t, 3> order{};
    permutation(rng, order);
    ++count[static_cast<std::size_t>(order[0] * 9 + order[1] * 3 + order[2])];
  }
  int orders = 0;
  for (const int c : count) {
    if (c == 0) continue;
    ++orders;
    EXPECT_NEAR(c, kDraws / 6, 6 * std::sqrt(kDraws / 6.0));
  }
  EXPECT_EQ(orders, 6);
}

}  // namespace
}  // namespace stormo
