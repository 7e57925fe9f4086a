// Whole numbers of a scale for each block: how exact they are, and what a block with a number that
// is not finite becomes.
#include <stormo/codec/codec.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/unit/codec/coded.h"

namespace stormo {
namespace {

constexpr std::size_t kBlock = 256;

struct Rounded {
  Codec::Kind codec;
  int most;  ///< the largest whole number
};

class WholeNumbers : public testing::TestWithParam<Rounded> {
 protected:
  const CodecRow& row() const { return row_of(GetParam().codec); }
};

TEST_P(WholeNumbers, EachValueIsWithinHalfAStepOfTheLargestOfItsBlock) {
  for (const double scale : {1e-20, 1e-3, 1.0, 1e30}) {
    const std::vector<float> values = random_values(5 * kBlock - 3, scale);
    const Coded c = coded(row(), values);
    for (std::size_t b = 0; b < values.size(); b += kBlock) {
      const std::size_t end = std::min(b + kBlock, values.size());
      float largest = 0;
      for (std::size_t i = b; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
      const float half_a_step = largest / static_cast<float>(2 * GetParam().most);
      for (std::size_t i = b; i < end; ++i) {
        EXPECT_LE(std::fabs(values[i] - c.decoded[i]), 1.001f * half_a_step) << values[i];
      }
    }
  }
}

TEST_P(WholeNumbers, TheLargestOfABlockAndZeroAreExact) {
  const auto most = static_cast<float>(GetParam().most);
  std::vector<float> values(2 * kBlock);
  values[3] = -0.1f * most;
  values[kBlock + 1] = most;
  values[kBlock + 2] = std::floor(most / 2);
  const Coded c = coded(row(), values);
  EXPECT_FLOAT_EQ(c.decoded[3], values[3]);
  EXPECT_EQ(c.decoded[kBlock + 1], values[kBlock + 1]);
  EXPECT_EQ(c.decoded[kBlock + 2], values[kBlock + 2]);
  for (const std::size_t i : {std::size_t{0}, std::size_t{4}, kBlock, 2 * kBlock - 1}) {
    EXPECT_EQ(c.decoded[i], 0);
    EXPECT_EQ(c.lost[i], 0);
  }
}

TEST_P(WholeNumbers, ABlockThatIsNotFiniteBecomesNotANumberAndKeepsNothing) {
  for (const std::size_t at : {std::size_t{0}, std::size_t{100}, kBlock - 1}) {
    std::vector<float> values = random_values(2 * kBlock, 1);
    values[at] = std::numeric_limits<float>::infinity();
    const Coded c = coded(row(), values);
    for (std::size_t i = 0; i < kBlock; ++i) {
      EXPECT_TRUE(std::isnan(c.decoded[i]));
      EXPECT_EQ(c.lost[i], 0);
      EXPECT_FALSE(std::isnan(c.decoded[kBlock + i])) << "the next block is another one";
    }
  }
}

// Each of the two neighbours, the nearer one more often.
TEST(DrawnNumbers, AreOneOfTheTwoNearest) {
  for (const auto& [codec, most] : {Rounded{Codec::kTernGrad, 1}, Rounded{Codec::kQsgd, 7}}) {
    const std::vector<float> values = random_values(5 * kBlock - 3, 1);
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      const Coded c = coded(row_of(codec), values, {.seed = seed});
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_LE(std::fabs(c.lost[i]), 1.001f / static_cast<float>(most)) << values[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Nearest, WholeNumbers,
                         testing::Values(Rounded{Codec::kInt8, 127}, Rounded{Codec::kInt4, 7}),
                         [](const auto& test) {
                           return std::string(row_of(test.param.codec).word);
                         });

}  // namespace
}  // namespace stormo
