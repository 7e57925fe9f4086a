#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/comm/kernels/kernels.h>

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

/// The definition: every source scaled, rounded and added in order.
template <class T>
T expected(Combine how, const std::vector<std::vector<T>>& in, const std::vector<double>& scales,
           std::size_t i) {
  T acc{};
  for (std::size_t s = 0; s < in.size(); ++s) {
    const T x = in[s][i];
    if (how == Combine::kMin) acc = s == 0 ? x : std::min(acc, x);
    if (how == Combine::kMax) acc = s == 0 ? x : std::max(acc, x);
    if (how == Combine::kProduct) acc = s == 0 ? x : static_cast<T>(acc * x);
    if constexpr (std::is_integral_v<T>) {
      if (how == Combine::kBitAnd) acc = s == 0 ? x : static_cast<T>(acc & x);
      if (how == Combine::kBitOr) acc = static_cast<T>(acc | x);
      if (how == Combine::kBitXor) acc = static_cast<T>(acc ^ x);
      if (how == Combine::kLogicalAnd) acc = static_cast<T>((s == 0 || acc != 0) && x != 0);
      if (how == Combine::kLogicalOr) acc = static_cast<T>(acc != 0 || x != 0);
      if (how == Combine::kLogicalXor) acc = static_cast<T>((acc != 0) != (x != 0));
    }
    if (how == Combine::kSum) {
      if constexpr (std::is_floating_point_v<T>) {
        const volatile T term = x * static_cast<T>(scales[s]);  // rounded: not fused with the sum
        acc = s == 0 ? T(term) : acc + term;
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

TEST(Kernels, KnowsEveryOperationOfIntegers) {
  for (const Combine how :
       {Combine::kSum, Combine::kMin, Combine::kMax, Combine::kBitAnd, Combine::kBitOr,
        Combine::kBitXor, Combine::kLogicalAnd, Combine::kLogicalOr, Combine::kLogicalXor}) {
    sweep<std::int8_t>(how, false);
    sweep<std::int16_t>(how, false);
    sweep<std::int32_t>(how, false);
    sweep<std::int64_t>(how, false);
    sweep<std::uint8_t>(how, false);
  }
}

TEST(Kernels, Multiplies) {
  sweep<float>(Combine::kProduct, false);
  sweep<double>(Combine::kProduct, false);
  sweep<std::int8_t>(Combine::kProduct, false);
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

/// Integers from -2048 to 2048, which float16 holds exactly.
std::uint16_t bits_of_float16(int x) {
  if (x == 0) return 0;
  const int magnitude = std::abs(x);
  const int exponent = std::bit_width(static_cast<unsigned>(magnitude)) - 1;
  const int mantissa = ((magnitude << 10) >> exponent) & 0x3ff;
  return static_cast<std::uint16_t>((x < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | mantissa);
}

TEST(Kernels, SixteenBitFloatsOfEveryLength) {
  for (const std::int64_t count : kCounts) {
    std::vector<std::vector<std::uint16_t>> f16(3);
    std::vector<std::vector<std::uint16_t>> bf16(3);
    std::vector<std::uint16_t> sum16;
    std::vector<std::uint16_t> sum_bf16;
    for (int i = 0; i < count; ++i) {
      int sum = 0;
      for (std::size_t s = 0; s < 3; ++s) {
        const int x = (i * 7 + static_cast<int>(s) * 13) % 65 - 32;
        sum += x;
        f16[s].push_back(bits_of_float16(x));
        bf16[s].push_back(bits_of_bfloat16(static_cast<float>(x)));
      }
      sum16.push_back(bits_of_float16(sum));
      sum_bf16.push_back(bits_of_bfloat16(static_cast<float>(sum)));
    }
    const auto total = [&](DType dtype, const auto& in) {
      const Operand operands[] = {{in[0].data(), 1}, {in[1].data(), 1}, {in[2].data(), 1}};
      std::vector<std::uint16_t> a(static_cast<std::size_t>(count) + 1, 42);
      std::vector<std::uint16_t> b = a;
      void* const destinations[] = {a.data(), b.data()};
      reduce(dtype, Combine::kSum, operands, destinations, count);
      EXPECT_EQ(a, b);
      EXPECT_EQ(a.back(), 42) << "wrote past the end";
      a.pop_back();
      return a;
    };
    EXPECT_EQ(total(DType::kFloat16, f16), sum16);
    EXPECT_EQ(total(DType::kBFloat16, bf16), sum_bf16);
  }
}

TEST(Kernels, Float16RoundsToNearestEven) {
  const std::vector<std::uint16_t> a{bits_of_float16(2048), bits_of_float16(2048)};
  const std::vector<std::uint16_t> b{bits_of_float16(1), bits_of_float16(3)};
  std::vector<std::uint16_t> out(2);
  const Operand operands[] = {{a.data(), 1}, {b.data(), 1}};
  void* const destination[] = {out.data()};
  reduce(DType::kFloat16, Combine::kSum, operands, destination, 2);
  EXPECT_EQ(out[0], bits_of_float16(2048)) << "2049 is a tie: to even";
  EXPECT_EQ(out[1], 0x6802) << "2051 is a tie: 2052";
}

TEST(Kernels, AUsersOwnOperation) {
  auto in = inputs<float>(3, 5000, 9);
  std::vector<float> out(5000);
  const Operand operands[] = {{in[0].data(), 1}, {in[1].data(), 1}, {in[2].data(), 1}};
  void* const destination[] = {out.data()};
  const CombineFunction hypotenuse = [](const void* x, void* acc, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      auto& a = static_cast<float*>(acc)[i];
      a = std::hypot(a, static_cast<const float*>(x)[i]);
    }
  };
  reduce(DType::kFloat32, hypotenuse, operands, destination, 5000);
  for (std::size_t i = 0; i < 5000; ++i) {
    ASSERT_EQ(out[i], std::hypot(std::hypot(in[0][i], in[1][i]), in[2][i]));
  }
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

// Whole vectors, whose even and odd elements are rounded apart, of one source, two and three.
TEST(Kernels, BFloat16KeepsNaNAndInfinityInVectors) {
  constexpr std::size_t kCount = 512;
  std::vector<std::uint16_t> a(kCount), zero(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    a[i] = i % 3 == 0 ? 0x7fff : i % 3 == 1 ? 0xff80 : 0x3f80;  // NaN, -infinity, 1
  }
  const Operand operands[] = {{a.data(), 1}, {zero.data(), 1}, {zero.data(), 1}};
  for (std::size_t sources = 1; sources <= 3; ++sources) {
    std::vector<std::uint16_t> out(kCount);
    void* const destination[] = {out.data()};
    reduce(DType::kBFloat16, Combine::kSum, std::span(operands).first(sources), destination,
           kCount);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      wrong += i % 3 == 0 ? !std::isnan(from_bfloat16(out[i])) : out[i] != a[i];
    }
    EXPECT_EQ(wrong, 0u) << sources << " sources";
  }
}

// To ask the processor what it can do takes 14 us in a virtual machine.
TEST(Kernels, AreFoundWithoutAskingTheProcessorAgain) {
  constexpr int kTimes = 100'000;
  kernel_of(DType::kFloat32);
  const std::clock_t begun = std::clock();
  for (int i = 0; i < kTimes; ++i) EXPECT_NE(kernel_of(DType::kFloat32), nullptr);
  EXPECT_LT(std::clock() - begun, CLOCKS_PER_SEC / 2) << "of processor time";
}

}  // namespace
}  // namespace stormo::comm
