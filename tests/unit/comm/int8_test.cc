// The codec of 8 bits in blocks: how exact it is, and what it does with numbers that it cannot
// encode.
#include <stormo/comm/codec/encoders.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "stormo/base/rng.h"

namespace stormo::comm {
namespace {

const Encoder kEncoder = int8_encoder();
const auto kBlock = static_cast<std::size_t>(kEncoder.row.block);
const auto kBytes = static_cast<std::size_t>(kEncoder.row.block_bytes);

struct Coded {
  std::vector<std::byte> code;
  std::vector<float> decoded;
  std::vector<float> lost;
};

Coded coded(std::vector<float> values) {
  Coded out{.code = std::vector<std::byte>(values.size() / kBlock * kBytes),
            .decoded = std::vector<float>(values.size()),
            .lost = std::move(values)};
  kEncoder.encode(out.lost, out.code.data());
  kEncoder.decode_add(out.code.data(), out.decoded);
  return out;
}

std::vector<float> random_values(double scale) {
  Rng rng(7, "int8_test");
  std::vector<float> out(4 * kBlock);
  for (float& v : out) v = static_cast<float>(scale * (2 * rng.uniform() - 1));
  return out;
}

TEST(Int8, EachValueIsWithinHalfAStepOfTheLargestOfItsBlock) {
  for (const double scale : {1e-20, 1e-3, 1.0, 1e30}) {
    const std::vector<float> values = random_values(scale);
    const Coded c = coded(values);
    for (std::size_t b = 0; b < values.size(); b += kBlock) {
      float largest = 0;
      for (std::size_t i = b; i < b + kBlock; ++i)
        largest = std::max(largest, std::fabs(values[i]));
      for (std::size_t i = b; i < b + kBlock; ++i) {
        EXPECT_LE(std::fabs(values[i] - c.decoded[i]), 1.001f * largest / 254) << values[i];
      }
    }
  }
}

TEST(Int8, WhatIsLostIsTheDifference) {
  const std::vector<float> values = random_values(3);
  const Coded c = coded(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(c.lost[i], values[i] - c.decoded[i]);
  }
}

TEST(Int8, DecodingAddsToWhatIsThere) {
  const Coded c = coded(random_values(1));
  std::vector<float> twice = c.decoded;
  kEncoder.decode_add(c.code.data(), twice);
  for (std::size_t i = 0; i < twice.size(); ++i) EXPECT_EQ(twice[i], 2 * c.decoded[i]);
}

TEST(Int8, TheLargestOfABlockAndZeroAreExact) {
  std::vector<float> values(2 * kBlock);
  values[3] = -12.7f;
  values[kBlock + 1] = 127;
  values[kBlock + 2] = 64;
  const Coded c = coded(values);
  EXPECT_FLOAT_EQ(c.decoded[3], -12.7f);
  EXPECT_EQ(c.decoded[kBlock + 1], 127);
  EXPECT_EQ(c.decoded[kBlock + 2], 64);
  for (const std::size_t i : {std::size_t{0}, std::size_t{4}, kBlock, 2 * kBlock - 1}) {
    EXPECT_EQ(c.decoded[i], 0);
    EXPECT_EQ(c.lost[i], 0);
  }
}

TEST(Int8, WhatIsTooSmallIsKept) {
  std::vector<float> values(kBlock, 1e-40f);
  const Coded c = coded(values);
  EXPECT_EQ(c.lost, values);
  for (const float v : c.decoded) EXPECT_EQ(v, 0);
}

// A gradient that is not finite must be seen by all ranks, and forgotten.
TEST(Int8, ABlockThatIsNotFiniteBecomesNotANumberAndKeepsNothing) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{100}, kBlock - 1}) {
      std::vector<float> values = random_values(1);
      values[at] = bad;
      const Coded c = coded(values);
      for (std::size_t i = 0; i < kBlock; ++i) {
        EXPECT_TRUE(std::isnan(c.decoded[i]));
        EXPECT_EQ(c.lost[i], 0);
      }
      EXPECT_FALSE(std::isnan(c.decoded[kBlock])) << "the next block is another one";
    }
  }
}

}  // namespace
}  // namespace stormo::comm
