// What all systems under measurement share: numbers, operations, payload, loop.
#include <bench/measure.h>
#include <bench/payload.h>
#include <bench/statistics.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace stormo::bench {
namespace {

using ::testing::ElementsAre;

TEST(Statistics, PercentilesAreNearestRanks) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1.0);
  EXPECT_EQ(percentile(values, 0.5), 50);
  EXPECT_EQ(percentile(values, 0.99), 99);
  EXPECT_EQ(percentile(values, 1), 100);
  EXPECT_EQ(percentile({7}, 0.01), 7);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(Statistics, RatiosCompareOnlyTimesOfTheSameRound) {
  // one slow round for both sides changes nothing
  const Spread s = ratios(std::vector{2.0, 20.0, 3.0}, std::vector{1.0, 10.0, 1.0});
  EXPECT_EQ(s.median, 2);
  EXPECT_EQ(s.min, 2);
  EXPECT_EQ(s.max, 3);
  EXPECT_EQ(ratios(std::vector{1.0, 3.0}, std::vector{1.0, 1.0}).median, 2);
}

TEST(Operations, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Operation::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::kAllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Operation::kBarrier, 4), 0);
}

TEST(Operations, TableIsInOrderAndHasNames) {
  for (const OperationFacts& facts : kOperations) {
    EXPECT_EQ(&facts_of(facts.operation), &facts);
    EXPECT_EQ(find_operation(facts.name), &facts);
  }
  EXPECT_EQ(find_operation("all_reduced"), nullptr);
}

TEST(Operations, PartsAreEqualAndRoundedUp) {
  const Shape s = shape_of(facts_of(Operation::kGather), 10, 3, 1);
  EXPECT_EQ(s.part, 4u);
  EXPECT_EQ(s.whole, 12u);
  EXPECT_EQ(s.in, 4u);
  EXPECT_EQ(s.out, 0u);
  EXPECT_EQ(shape_of(facts_of(Operation::kGather), 10, 3, 0).out, 12u);
  EXPECT_EQ(shape_of(facts_of(Operation::kAllReduce), 10, 3, 0).whole, 10u);
}

/// All ranks' inputs and outputs as int32, and the naive operation between them.
struct Naive {
  using Values = std::vector<std::int32_t>;
  static std::byte* bytes(Values& v) { return reinterpret_cast<std::byte*>(v.data()); }

  Naive(const OperationFacts& facts, int n, std::uint64_t elements)
      : payload(DType::kInt32, n, shape_of(facts, elements, n, 0).whole, facts.reduces) {
    for (int r = 0; r < n; ++r) {
      shapes.push_back(shape_of(facts, elements, n, r));
      in.emplace_back(shapes.back().in);
      out.emplace_back(shapes.back().out);
      payload.rewrite(bytes(in.back()), in.back().size(), r, 3);
    }
  }
  std::int32_t at(Operation op, std::size_t rank, std::size_t i) const {
    const std::size_t part = shapes[0].part;
    const auto sum = [&](std::size_t last, std::size_t element) {
      std::int32_t total = 0;
      for (std::size_t r = 0; r <= last; ++r) total += in[r][element];
      return total;
    };
    switch (op) {
      case Operation::kAllReduce:
      case Operation::kReduce: return sum(in.size() - 1, i);
      case Operation::kScan: return sum(rank, i);
      case Operation::kReduceScatter: return sum(in.size() - 1, rank * part + i);
      case Operation::kBroadcast: return in[0][i];
      case Operation::kScatter: return in[0][rank * part + i];
      case Operation::kAllGather:
      case Operation::kGather: return in[i / part][i % part];
      case Operation::kAllToAll: return in[i / part][rank * part + i % part];
      case Operation::kBarrier: break;
    }
    return 0;
  }

  Payload payload;
  std::vector<Shape> shapes;
  std::vector<Values> in, out;
};

TEST(Payload, HoldsExactlyTheOutcomeOfEveryOperation) {
  for (const OperationFacts& facts : kOperations) {
    for (const int n : {1, 2, 3, 5}) {
      for (const std::uint64_t elements : {1u, 7u, 10'000u}) {
        Naive naive(facts, n, elements);
        for (int r = 0; r < n; ++r) {
          auto& out = naive.out[static_cast<std::size_t>(r)];
          for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = naive.at(facts.operation, static_cast<std::size_t>(r), i);
          const auto expected =
              expected_output(facts, naive.shapes[static_cast<std::size_t>(r)], n, r);
          EXPECT_TRUE(naive.payload.holds(Naive::bytes(out), expected, 3)) << facts.name << n;
          if (out.empty()) continue;
          out.back() ^= 1;
          EXPECT_FALSE(naive.payload.holds(Naive::bytes(out), expected, 3)) << facts.name << n;
        }
      }
    }
  }
}

TEST(Payload, IsExactInEveryType) {
  for (const DType dtype : kDTypes) {
    if (dtype == DType::kBool) continue;
    Payload payload(dtype, 2, 16, true);
    std::vector<std::byte> one(16 * size_of(dtype));
    payload.rewrite(one.data(), 16, 0, 0);
    EXPECT_TRUE(payload.holds(one.data(), {{0, 0, 0, 16}}, 7)) << to_string(dtype);
    EXPECT_FALSE(payload.holds(one.data(), {{1, 1, 0, 16}}, 0)) << to_string(dtype);
    Payload::spoil(one.data(), one.size());
    EXPECT_FALSE(payload.holds(one.data(), {{0, 0, 0, 16}}, 0)) << to_string(dtype);
  }
  EXPECT_FALSE(find_dtype("bool").has_value());
  EXPECT_EQ(find_dtype("bfloat16"), DType::kBFloat16);
}

/// A world of one rank, which may do its work wrong.
class Alone : public Engine {
 public:
  explicit Alone(bool wrong) : wrong_(wrong) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool one_host() const override { return true; }
  std::byte* allocate(std::size_t bytes) override { return new std::byte[bytes]; }
  void deallocate(std::byte* memory) override { delete[] memory; }
  Status run(Operation, const Operands& o) override {
    ++calls;
    const std::size_t bytes = o.shape.out * size_of(o.dtype);
    if (o.in != o.out && bytes > 0) std::memcpy(o.out, o.in, bytes);
    if (wrong_ && bytes > 0) o.out[bytes - 1] ^= std::byte{1};
    return {};
  }
  Status barrier() override { return {}; }
  Status largest(std::span<double>) override { return {}; }
  Status total(std::span<double>) override { return {}; }

  int calls = 0;

 private:
  bool wrong_;
};

TEST(Measure, CountsAndVerifies) {
  for (const OperationFacts& facts : kOperations) {
    Alone right(false);
    const auto m = measure(right, facts.operation, 4096, {.seconds = 0.001}).take_or_throw();
    EXPECT_TRUE(m.verified) << facts.name;
    EXPECT_GE(m.iterations, 200);
    EXPECT_EQ(right.calls, m.iterations + 5);  // two that are verified, three to warm up
    EXPECT_LE(m.p50_s, m.p90_s);
    EXPECT_LE(m.p90_s, m.p99_s);
  }
}

/// Together with a second rank that begins and ends everything a second later.
class WithALateRank : public Alone {
 public:
  WithALateRank() : Alone(false) {}
  Status largest(std::span<double> values) override {
    for (double& v : values)
      if (v > kSecondsSinceBoot) v += 1;  // an end; durations are short, begins come negated
    return {};
  }

 private:
  static constexpr double kSecondsSinceBoot = 2;
};

TEST(Measure, CountsFromTheFirstBeginWhenSomeRanksWaitForNobody) {
  WithALateRank engine;
  const MeasureOptions short_time{.seconds = 0.001};
  const auto p50 = [&](Operation op) {
    return measure(engine, op, 64, short_time).take_or_throw().p50_s;
  };
  for (const OperationFacts& facts : kOperations) {
    if (facts.meets)
      EXPECT_LT(p50(facts.operation), 1) << facts.name;
    else
      EXPECT_GE(p50(facts.operation), 1) << facts.name;
  }
}

TEST(Measure, SeesWrongResults) {
  for (const OperationFacts& facts : kOperations) {
    if (facts.operation == Operation::kBarrier) continue;
    Alone wrong(true);
    const auto m = measure(wrong, facts.operation, 64, {.seconds = 0.001}).take_or_throw();
    EXPECT_FALSE(m.verified) << facts.name;
  }
}

TEST(Record, ReadsWhatItWrites) {
  Measurement m{.operation = "scan", .ranks = 3, .bytes = 8, .dtype = "int8", .p50_s = 1e-6};
  m.roofline = 0.5;
  m.verified = true;
  const auto read = parse_measurements(to_json(m) + "\n\n" + to_json(m)).take_or_throw();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(to_json(read[1]), to_json(m));
  EXPECT_EQ(parse_measurements("{\"op\":1}").status().code(), Code::kCorrupt);
  EXPECT_EQ(parse_measurements("mpirun says hello\n").status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace stormo::bench
