// One bit for each number: the magnitude that a block has, and that short blocks have one of their
// own.
#include <stormo/codec/codec.h>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/unit/codec/coded.h"

namespace stormo {
namespace {

constexpr std::size_t kBlock = 512;

TEST(Sign, IsTheSignTimesTheMeanOfMagnitudes) {
  for (const std::size_t count : {kBlock, kBlock + 1, 3 * kBlock - 5, std::size_t{3}}) {
    const std::vector<float> values = random_values(count, 5);
    const Coded c = coded(row_of(Codec::kSign), values);
    for (std::size_t b = 0; b < count; b += kBlock) {
      const std::size_t end = std::min(b + kBlock, count);
      double mean = 0;
      for (std::size_t i = b; i < end; ++i) mean += std::fabs(values[i]);
      mean /= static_cast<double>(end - b);
      for (std::size_t i = b; i < end; ++i) {
        EXPECT_NEAR(c.decoded[i], std::copysign(mean, values[i]), 1e-5 * mean) << i;
      }
    }
  }
}

TEST(Sign, AddsUpLargeNumbersWithoutOverflow) {
  const Coded c = coded(row_of(Codec::kSign), std::vector<float>(2 * kBlock, -3e38f));
  for (const float v : c.decoded) EXPECT_FLOAT_EQ(v, -3e38f);
}

TEST(Sign, IsAnEighthOfAByteAndAScale) {
  const auto bytes = [](Codec codec, std::int64_t numbers) {
    return row_of(codec).bytes(numbers, codec.density);
  };
  EXPECT_EQ(bytes(Codec::kSign, 1000 * kBlock), 1000 * (64 + 4));
  EXPECT_EQ(bytes(Codec::kTernGrad, 1000 * 256), 1000 * (64 + 4));
  EXPECT_EQ(bytes(Codec::kInt4, 1000 * 256), 1000 * (128 + 4));
  EXPECT_EQ(bytes(Codec::kInt8, 1000 * 256), 1000 * (256 + 4));
}

}  // namespace
}  // namespace stormo
