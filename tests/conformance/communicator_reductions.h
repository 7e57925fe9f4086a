#pragma once

#include <stormo/codec/codec.h>
#include <stormo/comm/codec/low_rank_sum.h>
#include <stormo/comm/codec/sum_of_codes.h>

#include <bit>

#include "tests/conformance/communicator_conformance.h"

/// Part of the suite: every reduction of every type.
namespace stormo::comm {

/// The term of a rank at an element: 0 to 3, so that every type holds the outcome exactly.
inline int term(int rank, std::size_t i) {
  return static_cast<int>((static_cast<std::size_t>(rank) + i) % 4);
}

/// All-reduces terms of type T with `op` and compares each element with the fold of the terms.
/// `encode` makes an element of a term.
template <class T, class Fold, class Encode>
void reduces_as(Communicator& c, DType dtype, ReduceOp op, Fold fold, Encode encode) {
  for (const std::size_t count : {3u, 20011u}) {
    const std::unique_ptr<T[]> x(new T[count]);
    for (std::size_t i = 0; i < count; ++i) x[i] = encode(term(c.rank(), i));
    EXPECT_OK(
        c.all_reduce(Buffer{x.get(), static_cast<std::int64_t>(count), dtype}, Reduction(op)));
    for (std::size_t i = 0; i < count; ++i) {
      int want = term(0, i);
      for (int r = 1; r < c.size(); ++r) want = fold(want, term(r, i));
      ASSERT_EQ(x[i], encode(want)) << to_string(op) << " of " << to_string(dtype);
    }
  }
}

template <class T, class Encode>
void arithmetic_reductions(Communicator& c, DType dtype, Encode encode) {
  reduces_as<T>(
      c, dtype, ReduceOp::kSum, [](int a, int b) { return a + b; }, encode);
  reduces_as<T>(
      c, dtype, ReduceOp::kProduct, [](int a, int b) { return a * b; }, encode);
  reduces_as<T>(
      c, dtype, ReduceOp::kMin, [](int a, int b) { return std::min(a, b); }, encode);
  reduces_as<T>(
      c, dtype, ReduceOp::kMax, [](int a, int b) { return std::max(a, b); }, encode);
}

template <class T, class Encode>
void logical_reductions(Communicator& c, DType dtype, Encode encode) {
  const auto truth = [&](ReduceOp op, auto fold) {
    // with one rank nothing is combined, and an integer keeps its value
    if (c.size() > 1) reduces_as<T>(c, dtype, op, fold, encode);
  };
  truth(ReduceOp::kLogicalAnd, [](int a, int b) { return a && b ? 1 : 0; });
  truth(ReduceOp::kLogicalOr, [](int a, int b) { return a || b ? 1 : 0; });
  truth(ReduceOp::kLogicalXor, [](int a, int b) { return !a != !b ? 1 : 0; });
}

template <class T>
void integer_reductions(Communicator& c) {
  const auto encode = [](int v) { return static_cast<T>(v); };
  const DType dtype = DTypeOf<T>::value;
  arithmetic_reductions<T>(c, dtype, encode);
  logical_reductions<T>(c, dtype, encode);
  reduces_as<T>(
      c, dtype, ReduceOp::kBitAnd, [](int a, int b) { return a & b; }, encode);
  reduces_as<T>(
      c, dtype, ReduceOp::kBitOr, [](int a, int b) { return a | b; }, encode);
  reduces_as<T>(
      c, dtype, ReduceOp::kBitXor, [](int a, int b) { return a ^ b; }, encode);
}

/// 16-bit floats, of numbers that both represent exactly.
inline std::uint16_t to_bfloat16(float v) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
}
inline std::uint16_t to_float16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  if (v == 0) return 0;
  return static_cast<std::uint16_t>((((bits >> 23) - 127 + 15) << 10) | ((bits >> 13) & 0x3FF));
}

TEST_P(CommunicatorConformance, EveryReductionOfIntegers) {
  on_each([](Communicator& c) {
    integer_reductions<std::int8_t>(c);
    integer_reductions<std::int16_t>(c);
    integer_reductions<std::int32_t>(c);
    integer_reductions<std::int64_t>(c);
    integer_reductions<std::uint8_t>(c);
  });
}

TEST_P(CommunicatorConformance, EveryReductionOfTruths) {
  on_each([](Communicator& c) {
    const auto encode = [](int v) { return v != 0; };
    const auto both = [](int a, int b) { return a && b ? 1 : 0; };
    const auto any = [](int a, int b) { return a || b ? 1 : 0; };
    logical_reductions<bool>(c, DType::kBool, encode);
    reduces_as<bool>(c, DType::kBool, ReduceOp::kMin, both, encode);
    reduces_as<bool>(c, DType::kBool, ReduceOp::kMax, any, encode);
    reduces_as<bool>(c, DType::kBool, ReduceOp::kBitAnd, both, encode);
    reduces_as<bool>(c, DType::kBool, ReduceOp::kBitOr, any, encode);
    reduces_as<bool>(
        c, DType::kBool, ReduceOp::kBitXor, [](int a, int b) { return !a != !b ? 1 : 0; }, encode);
  });
}

TEST_P(CommunicatorConformance, EveryReductionOfFloats) {
  on_each([](Communicator& c) {
    arithmetic_reductions<float>(c, DType::kFloat32, [](int v) { return static_cast<float>(v); });
    arithmetic_reductions<double>(c, DType::kFloat64, [](int v) { return static_cast<double>(v); });
    arithmetic_reductions<std::uint16_t>(c, DType::kBFloat16,
                                         [](int v) { return to_bfloat16(static_cast<float>(v)); });
    arithmetic_reductions<std::uint16_t>(c, DType::kFloat16,
                                         [](int v) { return to_float16(static_cast<float>(v)); });
  });
}

TEST_P(CommunicatorConformance, Averages) {
  on_each([](Communicator& c) {
    for (const std::size_t count : {5u, 9001u}) {
      std::vector<double> x(count, c.rank() + 1);
      EXPECT_OK(c.all_reduce(x, ReduceOp::kAverage));
      for (const double v : x) ASSERT_DOUBLE_EQ(v, (c.size() + 1) / 2.0);
      // equal terms: their average has one rounding for each rank at most
      std::vector<std::uint16_t> half(count, to_bfloat16(3));
      const auto n = static_cast<std::int64_t>(count);
      EXPECT_OK(c.all_reduce(Buffer{half.data(), n, DType::kBFloat16}, ReduceOp::kAverage));
      for (const std::uint16_t v : half) {
        ASSERT_NEAR(std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16), 3, 0.05);
      }
      std::vector<float> parts(count * static_cast<std::size_t>(c.size()),
                               static_cast<float>(c.rank()));
      std::vector<float> mine(count);
      EXPECT_OK(c.reduce_scatter(parts, mine, ReduceOp::kAverage));
      for (const float v : mine) ASSERT_FLOAT_EQ(v, static_cast<float>(c.size() - 1) / 2);
    }
  });
}

TEST_P(CommunicatorConformance, WeightedAverageIgnoresRanksOfWeightZero) {
  on_each([](Communicator& c) {
    const auto weight = [](int rank) { return rank % 3 == 2 ? 0.0 : rank + 1.0; };
    double total = 0, want = 0;
    for (int r = 0; r < c.size(); ++r) {
      total += weight(r);
      want += weight(r) * r;
    }
    for (const std::size_t count : {3u, 40000u}) {
      std::vector<double> x(count, weight(c.rank()) > 0 ? c.rank() : std::nan(""));
      const Buffer b = x;
      EXPECT_OK(c.all_reduce({&b, 1}, ReduceOp::kWeightedAverage, weight(c.rank())));
      for (const double v : x) ASSERT_DOUBLE_EQ(v, want / total);
    }
  });
}

TEST_P(CommunicatorConformance, ReplicasAreBitwiseEqual) {
  on_each([](Communicator& c) {
    std::vector<float> x(10007);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = 0.1f * static_cast<float>(c.rank() + 1) / static_cast<float>(i + 3);
    }
    EXPECT_OK(c.all_reduce(x, ReduceOp::kAverage));
    std::vector<float> all(x.size() * static_cast<std::size_t>(c.size()));
    EXPECT_OK(c.all_gather(x, all));
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], x[i % x.size()]);
  });
}

/// The sum of terms in a codec, as one operation like any other.
inline std::vector<float> encoded_sum_of_terms(Communicator& c, EncodedSum& sum, bool blocks) {
  std::vector<float> x(static_cast<std::size_t>(sum.count()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(term(c.rank(), i));
  const Buffer buffer = x;
  const Request request{
      .kind = OperationKind::kAllReduce, .in = {&buffer, 1}, .out = {&buffer, 1}, .encoding = &sum};
  EXPECT_OK(blocks ? c.run(request, Deadline::never()) : c.submit(request).wait());
  return x;
}

TEST_P(CommunicatorConformance, EncodedSumsAreEqualOnAllRanks) {
  on_each([](Communicator& c) {
    for (const CodecRow& row : codec_rows()) {
      if (!row.encodes()) continue;
      for (const std::int64_t count : {1, 1000, 20011}) {
        std::unique_ptr<EncodedSum> sum;
        if (row.has_factors()) {
          const std::vector<codec::MatrixShape> gradients = {{.rows = 20, .columns = 50},
                                                             {.columns = count}};
          sum = std::make_unique<LowRankSum>(c, gradients, 3);
        } else {
          sum = std::make_unique<SumOfCodes>(c, row, count);
        }
        for (const bool blocks : {true, false}) {
          std::vector<float> x = encoded_sum_of_terms(c, *sum, blocks);
          std::vector<float> all(x.size() * static_cast<std::size_t>(c.size()));
          EXPECT_OK(c.all_gather(x, all));
          for (std::size_t i = 0; i < all.size(); ++i) {
            ASSERT_EQ(all[i], x[i % x.size()]) << row.word << " of " << count;
          }
        }
      }
    }
  });
}

TEST_P(CommunicatorConformance, SumsInEightBitsAreNear) {
  on_each([](Communicator& c) {
    SumOfCodes sum(c, row_of(Codec::kInt8), 20011);
    for (const bool blocks : {true, false}) {
      const std::vector<float> x = encoded_sum_of_terms(c, sum, blocks);
      for (std::size_t i = 0; i < x.size(); ++i) {
        int want = 0;
        for (int r = 0; r < c.size(); ++r) want += term(r, i);
        ASSERT_NEAR(x[i], want, 3.0 * (c.size() + 1) / 100);
      }
    }
  });
}

TEST_P(CommunicatorConformance, AUsersOwnReduction) {
  const auto larger_magnitude = std::make_shared<UserReduction>(
      UserReduction{"larger magnitude", [](const void* x, void* acc, std::int64_t n) {
                      for (std::int64_t i = 0; i < n; ++i) {
                        const double theirs = static_cast<const double*>(x)[i];
                        double& mine = static_cast<double*>(acc)[i];
                        if (std::abs(theirs) > std::abs(mine)) mine = theirs;
                      }
                    }});
  on_each([&](Communicator& c) {
    const auto of_rank = [](int rank) { return rank % 2 == 0 ? rank : -rank; };
    for (const std::size_t count : {4u, 30000u}) {
      std::vector<double> x(count, of_rank(c.rank()));
      EXPECT_OK(c.all_reduce(x, Reduction(larger_magnitude)));
      ASSERT_EQ(x, std::vector<double>(count, of_rank(c.size() - 1)));
      x.assign(count, of_rank(c.rank()));
      EXPECT_OK(c.scan(x, Reduction(larger_magnitude)));
      ASSERT_EQ(x, std::vector<double>(count, of_rank(c.rank())));
    }
  });
}

}  // namespace stormo::comm
