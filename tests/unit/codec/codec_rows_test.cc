// What is true of every codec that encodes: its code has the bytes that its row says, nothing is
// lost unseen, and numbers that are not finite are seen by whoever decodes them.
#include <stormo/codec/codec.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "tests/unit/codec/coded.h"

namespace stormo {

void PrintTo(const Codec& codec, std::ostream* out) { *out << to_string(codec); }

namespace {

constexpr std::size_t kSizes[] = {0, 1, 2, 7, 255, 256, 257, 511, 512, 513, 1000, 4099};

std::vector<Codec> codecs() {
  std::vector<Codec> out;
  for (const CodecRow& row : codec_rows()) {
    if (row.encode == nullptr) continue;
    out.emplace_back(row.codec);
    if (!row.has_density) continue;
    for (const double density : {0.001, 0.05, 1.0}) out.emplace_back(row.codec, density);
  }
  return out;
}

double square(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return sum;
}

class CodecRows : public testing::TestWithParam<Codec> {
 protected:
  const CodecRow& row() const { return row_of(GetParam()); }
  CodeKey key(std::uint64_t seed = 0) const {
    return {.seed = seed, .density = GetParam().density};
  }
  Coded coded(const std::vector<float>& values, std::uint64_t seed = 0) const {
    return stormo::coded(row(), values, key(seed));
  }
};

TEST_P(CodecRows, WritesTheBytesThatItSays) {
  for (const std::size_t count : kSizes) {
    const auto bytes = row().bytes(static_cast<std::int64_t>(count), GetParam().density);
    EXPECT_EQ(bytes % 4, 0) << count;
    for (const std::byte filled : {std::byte{0}, std::byte{0xff}}) {
      std::vector<std::byte> code(static_cast<std::size_t>(bytes) + 64, filled);
      std::vector<float> values = random_values(count, 1);
      row().encode(values, code.data(), key());
      EXPECT_TRUE(
          std::all_of(code.begin() + bytes, code.end(), [&](std::byte b) { return b == filled; }));
      code.resize(static_cast<std::size_t>(bytes));
      EXPECT_EQ(code, coded(random_values(count, 1)).code) << count << ": a hole";
    }
  }
}

TEST_P(CodecRows, ForManyNumbersIsSmallerThanThey) {
  EXPECT_LT(row().bytes(100'000, Codec().density), 4 * 100'000);
}

TEST_P(CodecRows, WhatIsLostIsTheDifference) {
  for (const std::size_t count : kSizes) {
    for (const double scale : {1e-20, 3.0, 1e30}) {
      const std::vector<float> values = random_values(count, scale);
      const Coded c = coded(values);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(c.lost[i], values[i] - c.decoded[i]) << i << " of " << count;
      }
    }
  }
}

// Else error feedback would not end.
TEST_P(CodecRows, WithErrorFeedbackLosesLessThanThereIs) {
  if (!row().error_feedback) return;
  for (const std::size_t count : kSizes) {
    const std::vector<float> values = random_values(count, 1);
    const Coded c = coded(values);
    EXPECT_TRUE(square(c.lost) < square(values) || count == 0) << count;
  }
}

// Without error feedback what one step loses does not come with the next, so it must cancel out:
// the mean of what is drawn is within three standard errors.
TEST_P(CodecRows, WithoutErrorFeedbackIsUnbiased) {
  if (row().error_feedback) return;
  constexpr std::size_t kCount = 700;
  constexpr int kDraws = 400;
  const std::vector<float> values = random_values(kCount, 2);
  std::vector<double> mean(kCount), square_sum(kCount);
  double sums = 0, squares_of_sums = 0, largest = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    const auto seed = philox4x32({static_cast<std::uint32_t>(draw)}, {7});
    const Coded c = coded(values, seed[0] | std::uint64_t{seed[1]} << 32);
    double sum = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      const double error = c.decoded[i] - values[i];
      largest = std::max(largest, std::fabs(error));
      mean[i] += error / kDraws;
      square_sum[i] += error * error / kDraws;
      sum += error;
    }
    sums += sum / kDraws;
    squares_of_sums += sum * sum / kDraws;
  }
  // one more draw, the worst, as what is rare may not have come
  const auto in_standard_errors = [&](double m, double mean_square) {
    const double variance = mean_square - m * m + largest * largest / kDraws;
    return std::fabs(m) / std::sqrt(variance / kDraws);
  };
  // of independent numbers 1.9 are expected beyond
  std::size_t beyond = 0;
  double variance = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (in_standard_errors(mean[i], square_sum[i]) > 3) ++beyond;
    variance += square_sum[i] - mean[i] * mean[i];
  }
  EXPECT_LE(beyond, 7u);
  EXPECT_LT(in_standard_errors(sums, squares_of_sums), 3);
  EXPECT_NEAR((squares_of_sums - sums * sums) / variance, 1, 0.25) << "neighbours are correlated";
}

TEST_P(CodecRows, WithOneSeedHasOneCode) {
  const std::vector<float> values = random_values(1000, 1);
  EXPECT_EQ(coded(values, 5).code, coded(values, 5).code);
  if (row().error_feedback) return;
  for (const std::uint64_t other : {std::uint64_t{6}, std::uint64_t{5} << 32}) {
    EXPECT_NE(coded(values, 5).code, coded(values, other).code);
  }
}

TEST_P(CodecRows, DecodingAddsToWhatIsThere) {
  for (const std::size_t count : kSizes) {
    const Coded c = coded(random_values(count, 1));
    std::vector<float> twice = c.decoded;
    row().decode_add(c.code.data(), twice, key());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(twice[i], 2 * c.decoded[i]);
  }
}

TEST_P(CodecRows, ZerosStayZeros) {
  for (const std::size_t count : kSizes) {
    const Coded c = coded(std::vector<float>(count));
    EXPECT_EQ(c.decoded, std::vector<float>(count));
    EXPECT_EQ(c.lost, std::vector<float>(count));
  }
}

// Products with a scale that is no normal number are not exact.
TEST_P(CodecRows, WhatIsTooSmallIsSentAsItIsOrKept) {
  const std::vector<float> values(600, 1e-40f);
  const Coded c = coded(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(c.lost[i] + c.decoded[i], values[i]);
    EXPECT_EQ(c.lost[i] * c.decoded[i], 0);
  }
}

// A gradient that is not finite must be seen by all ranks, and forgotten.
TEST_P(CodecRows, ANumberThatIsNotFiniteIsSeenAndForgotten) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{300}, std::size_t{4099}}) {
      for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        std::vector<float> values = random_values(count, 1);
        values[at] = bad;
        const Coded c = coded(values);
        EXPECT_FALSE(std::ranges::all_of(c.decoded, [](float v) { return std::isfinite(v); }))
            << at << " of " << count;
        EXPECT_TRUE(std::ranges::all_of(c.lost, [](float v) { return std::isfinite(v); }))
            << at << " of " << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, CodecRows, testing::ValuesIn(codecs()), [](const auto& test) {
  std::string name = to_string(test.param);
  std::ranges::replace_if(
      name, [](char c) { return c == ':' || c == '.'; }, '_');
  return name;
});

}  // namespace
}  // namespace stormo
