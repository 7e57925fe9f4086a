// Codecs that send a few of the numbers: which ones, and in how many bytes.
#include <stormo/codec/codec.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/unit/codec/coded.h"

namespace stormo {
namespace {

Coded coded(Codec codec, const std::vector<float>& values, std::uint64_t seed = 0) {
  return coded(row_of(codec), values, {.seed = seed, .density = codec.density});
}

std::vector<std::size_t> places(const Coded& c) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < c.decoded.size(); ++i) {
    if (c.decoded[i] != 0) out.push_back(i);
  }
  return out;
}

/// By sorting.
std::vector<std::size_t> places_of_largest(const std::vector<float>& values, std::size_t count) {
  std::vector<std::size_t> out(values.size());
  std::iota(out.begin(), out.end(), std::size_t{0});
  std::ranges::stable_sort(out, [&](std::size_t a, std::size_t b) {
    return std::fabs(values[a]) > std::fabs(values[b]);
  });
  out.resize(count);
  std::ranges::sort(out);
  return out;
}

TEST(TopK, SendsTheLargestAsTheyAre) {
  for (const std::size_t count : {1, 2, 31, 32, 33, 100, 1000, 4099}) {
    for (const double density : {0.001, 0.03, 0.04, 0.5, 1.0}) {
      const std::vector<float> values = random_values(count, 1e3, count);
      const Coded c = coded({Codec::kTopK, density}, values);
      const double share = std::nearbyint(density * static_cast<double>(count));
      const auto kept = std::max<std::size_t>(1, static_cast<std::size_t>(share));
      EXPECT_EQ(places(c), places_of_largest(values, kept)) << kept << " of " << count;
      for (const std::size_t i : places(c)) EXPECT_EQ(c.decoded[i], values[i]);
    }
  }
}

// Else replicas might choose differently.
TEST(TopK, OfEqualNumbersSendsTheFirst) {
  std::vector<float> values(400, -2.0f);
  values[300] = 3;
  const Coded c = coded({Codec::kTopK, 0.01}, values);
  EXPECT_EQ(places(c), (std::vector<std::size_t>{0, 1, 2, 300}));
}

TEST(TopK, MagnitudesThatDifferInTheLastBitAreTold) {
  std::vector<float> values(1000);
  float next = 1;
  for (float& v : values) v = next = std::nextafter(next, 2.0f);
  std::reverse(values.begin() + 100, values.end());
  EXPECT_EQ(places(coded({Codec::kTopK, 0.003}, values)),
            (std::vector<std::size_t>{100, 101, 102}));
}

TEST(TopK, NumbersThatAreNotFiniteComeFirstAndAreAllForgotten) {
  std::vector<float> values = random_values(500, 1);
  for (std::size_t i = 100; i < 120; ++i) values[i] = std::numeric_limits<float>::quiet_NaN();
  const Coded c = coded({Codec::kTopK, 0.01}, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(c.decoded[i]), i >= 100 && i < 105) << "the one that is named, " << i;
    EXPECT_EQ(c.lost[i], i >= 100 && i < 120 ? 0 : values[i]);
  }
}

TEST(TopK, SendsIndicesOrBitsWhicheverIsLess) {
  const auto bytes = [](std::int64_t numbers, double density) {
    return row_of(Codec::kTopK).bytes(numbers, density);
  };
  EXPECT_EQ(bytes(100'000, 0.01), 8 * 1000);
  EXPECT_EQ(bytes(100'000, 0.1), 4 * 10'000 + 100'000 / 8);
  EXPECT_EQ(bytes(10, 0.01), 8);
  EXPECT_EQ(bytes(0, 0.5), 0);
  EXPECT_EQ(row_of(Codec::kRandomK).bytes(100'000, 0.01), 4 * 1000);
}

// Of numbers without a pattern the estimate is near.
TEST(Threshold, SendsAboutTheLargest) {
  const std::vector<float> values = random_values(200'000, 1);
  std::vector<float> magnitudes = values;
  for (float& v : magnitudes) v = std::fabs(v);
  std::ranges::sort(magnitudes, std::greater<>());
  for (const std::uint64_t seed : {1u, 12345u}) {
    const Coded c = coded({Codec::kThreshold, 0.01}, values, seed);
    const std::vector<std::size_t> own = places(c);
    EXPECT_GT(own.size(), 1600u);
    EXPECT_LE(own.size(), 2000u);
    for (const std::size_t i : own) {
      EXPECT_GE(std::fabs(values[i]), magnitudes[2500]);
      EXPECT_EQ(c.decoded[i], values[i]);
    }
  }
}

// Where many are equal those that there is no room for have their turn.
TEST(Threshold, BeginsAtAPlaceThatIsDrawn) {
  std::vector<float> values(1000, 1.0f);
  std::vector<int> chosen(values.size());
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const Coded c = coded({Codec::kThreshold, 0.01}, values, seed);
    ASSERT_EQ(places(c).size(), 10u);
    for (const std::size_t i : places(c)) ++chosen[i];
  }
  EXPECT_EQ(chosen, std::vector<int>(values.size(), 10));
}

TEST(Threshold, SendsNoZeros) {
  std::vector<float> values(1000);
  values[777] = -1e-30f;
  EXPECT_EQ(places(coded({Codec::kThreshold, 0.01}, values)), std::vector<std::size_t>{777});
}

TEST(Threshold, ANumberThatIsNotFiniteIsSentInPlaceOfAnother) {
  std::vector<float> values(1000, 1.0f);
  values[900] = std::numeric_limits<float>::infinity();
  const Coded c = coded({Codec::kThreshold, 0.01}, values);
  EXPECT_EQ(c.decoded[900], std::numeric_limits<float>::infinity());
  EXPECT_EQ(c.lost[900], 0);
}

TEST(RandomK, SendsOneOfEachStretchAtPlacesOfTheSeed) {
  constexpr std::size_t kCount = 1003, kKept = 10;
  const Codec codec(Codec::kRandomK, 0.01);
  std::vector<int> chosen(kCount);
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const Coded c = coded(codec, random_values(kCount, 1, seed), seed);
    const std::vector<std::size_t> own = places(c);
    ASSERT_EQ(own.size(), kKept);
    for (std::size_t i = 0; i < kKept; ++i) {
      EXPECT_GE(own[i], kCount * i / kKept);
      EXPECT_LT(own[i], kCount * (i + 1) / kKept);
    }
    EXPECT_EQ(own, places(coded(codec, std::vector<float>(kCount, 1.0f), seed)));
    for (const std::size_t i : own) ++chosen[i];
  }
  // 30 times each, to within 6 standard deviations
  EXPECT_GT(*std::ranges::min_element(chosen), 0);
  EXPECT_LT(*std::ranges::max_element(chosen), 30 + 6 * 5.5);
}

TEST(RandomK, CodesOfOneSeedCanBeAddedUp) {
  const std::vector<float> a = random_values(1000, 1, 1), b = random_values(1000, 1, 2);
  const Codec codec(Codec::kRandomK, 0.05);
  const Coded of_a = coded(codec, a, 9), of_b = coded(codec, b, 9);
  std::vector<float> sums(of_a.code.size() / sizeof(float));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float x = 0, y = 0;
    std::memcpy(&x, &of_a.code[4 * i], 4);
    std::memcpy(&y, &of_b.code[4 * i], 4);
    sums[i] = x + y;
  }
  std::vector<float> decoded(1000);
  row_of(codec).decode_add(reinterpret_cast<const std::byte*>(sums.data()), decoded,
                           {.seed = 9, .density = codec.density});
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    EXPECT_EQ(decoded[i], of_a.decoded[i] + of_b.decoded[i]);
  }
}

}  // namespace
}  // namespace stormo
