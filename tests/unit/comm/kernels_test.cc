#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/comm/kernels.h>

namespace stormo::comm {
namespace {

constexpr std::int64_t kCounts[] = {0, 1, 2, 3, 7, 15, 16, 17, 64, 1023, 1024, 1025, 5000};

template <class T>
std::vector<std::vector<T>> inputs(int n, std::int64_t count, std::uint64_t seed) {
  Rng rng(seed, "kernels_test");
  std::vector<std::vector<T>> all(static_cast<std::size_t>(n));
  for (auto& v : all) {
    for (std::int64_t i = 0; i < count; ++i) v.push_back(static_cast<T>(rng.uniform() * 200 - 100));
  }
  return all;
}

/// The definition: first source scaled, then fused multiply-adds in order.
template <class T>
T expected(Combine how, const std::vector<std::vector<T>>& in, const std::vector<double>& scales,
           std::size_t i) {
  T acc{};
  for (std::size_t s = 0; s < in.size(); ++s) {
    const T x = in[s][i];
    if (how == Combine::kMin) acc = s == 0 ? x : std::min(acc, x);
    if (how == Combine::kMax) acc = s == 0 ? x : std::max(acc, x);
    if (how == Combine::kSum) {
      if constexpr (std::is_floating_point_v<T>) {
        const T scale = static_cast<T>(scales[s]);
        acc = s == 0 ? x * scale : std::fma(x, scale, acc);
      } else {
        acc = static_cast<T>(acc + x);
      }
    }
  }
  return acc;
}

template <class T>
void sweep(Combine how, bool scaled) {
  for (const int n : {1, 2, 3, 5}) {
    for (const std::int64_t count : kCounts) {
      const auto in = inputs<T>(n, count, static_cast<std::uint64_t>(n * 1000 + count));
      std::vector<double> scales;
      std::vector<Operand> operands;
      for (int s = 0; s < n; ++s) {
        scales.push_back(scaled ? 0.1 * (s + 1) : 1.0);
        operands.push_back({in[static_cast<std::size_t>(s)].data(), scales.back()});
      }
      std::vector<T> a(static_cast<std::size_t>(count) + 1, T{42});
      std::vector<T> b = a;
      std::vector<T> c = a;
      void* const destinations[] = {a.data(), b.data(), c.data()};
      for (const std::size_t num : {1u, 2u, 3u}) {
        reduce(DTypeOf<T>::value, how, operands, {destinations, num}, count);
        for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
          ASSERT_EQ(a[i], expected(how, in, scales, i)) << n << " sources, element " << i;
          ASSERT_TRUE(num < 2 || b[i] == a[i]);
          ASSERT_TRUE(num < 3 || c[i] == a[i]);
        }
        ASSERT_EQ(a.back(), T{42}) << "wrote past the end";
      }
    }
  }
}

TEST(Kernels, SumsFloatingPointInOrderWithScales) {
  sweep<float>(Combine::kSum, true);
  sweep<double>(Combine::kSum, true);
  sweep<double>(Combine::kSum, false);
}

TEST(Kernels, SumsIntegers) {
  sweep<std::int32_t>(Combine::kSum, false);
  sweep<std::int64_t>(Combine::kSum, false);
}

TEST(Kernels, TakesMinimumAndMaximum) {
  sweep<float>(Combine::kMin, false);
  sweep<double>(Combine::kMax, false);
  sweep<std::int32_t>(Combine::kMin, false);
  sweep<std::int64_t>(Combine::kMax, false);
}

TEST(Kernels, ResultMayBeASource) {
  auto in = inputs<float>(3, 1500, 7);
  const auto before = in;
  const Operand operands[] = {{in[0].data(), 1}, {in[1].data(), 1}, {in[2].data(), 1}};
  void* const destinations[] = {in[0].data(), in[1].data(), in[2].data()};
  reduce(DType::kFloat32, Combine::kSum, operands, destinations, 1500);
  for (std::size_t i = 0; i < 1500; ++i) {
    ASSERT_EQ(in[0][i], before[0][i] + before[1][i] + before[2][i]);
    ASSERT_EQ(in[2][i], in[0][i]);
  }
}

TEST(Kernels, NoSourceMeansZero) {
  std::vector<double> out(10, 3.0);
  void* const destination[] = {out.data()};
  reduce(DType::kFloat64, Combine::kSum, {}, destination, 10);
  EXPECT_EQ(out, std::vector<double>(10, 0.0));
}

std::uint16_t bits_of_bfloat16(float f) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16);
}
float from_bfloat16(std::uint16_t b) { return std::bit_cast<float>(std::uint32_t{b} << 16); }

TEST(Kernels, BFloat16AccumulatesInFloat32AndRoundsToNearestEven) {
  // 256 + 1 + 1: added one by one in bfloat16 the ones vanish; in float32 258 is exact
  std::vector<std::uint16_t> a{bits_of_bfloat16(256), bits_of_bfloat16(1)};
  std::vector<std::uint16_t> b{bits_of_bfloat16(1), bits_of_bfloat16(0x1.0p-8f)};
  std::vector<std::uint16_t> c{bits_of_bfloat16(1), bits_of_bfloat16(0)};
  std::vector<std::uint16_t> out(2);
  const Operand operands[] = {{a.data(), 1}, {b.data(), 1}, {c.data(), 1}};
  void* const destination[] = {out.data()};
  reduce(DType::kBFloat16, Combine::kSum, operands, destination, 2);
  EXPECT_EQ(from_bfloat16(out[0]), 258.0f);
  EXPECT_EQ(from_bfloat16(out[1]), 1.0f) << "1 + 2^-8 is a tie: to even";
}

TEST(Kernels, BFloat16KeepsNaNAndInfinity) {
  std::vector<std::uint16_t> a{0x7fc0, 0x7f80};
  std::vector<std::uint16_t> out(2);
  const Operand operands[] = {{a.data(), 1}};
  void* const destination[] = {out.data()};
  reduce(DType::kBFloat16, Combine::kSum, operands, destination, 2);
  EXPECT_TRUE(std::isnan(from_bfloat16(out[0])));
  EXPECT_EQ(from_bfloat16(out[1]), std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace stormo::comm
