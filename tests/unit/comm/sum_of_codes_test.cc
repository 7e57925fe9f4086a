// Sums whose terms travel encoded: what ranks get, what is kept for the next sum, and what they
// send.
#include <stormo/comm/codec/sum_of_codes.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "stormo/base/rng.h"
#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

void decode_floats(const std::byte* code, std::span<float> values, const CodeKey&) {
  for (float& v : values) {
    float decoded = 0;
    std::memcpy(&decoded, std::exchange(code, code + sizeof(float)), sizeof(float));
    v += decoded;
  }
}

/// Loses nothing.
constexpr CodecRow kExact = {.word = "exact",
                             .sums = CodecSums::kPerMessage,
                             .bytes = [](std::int64_t numbers, double) { return 4 * numbers; },
                             .encode =
                                 [](std::span<float> values, std::byte* code, const CodeKey&) {
                                   std::memcpy(code, values.data(), values.size_bytes());
                                   std::ranges::fill(values, 0.0f);
                                 },
                             .decode_add = decode_floats};

/// Whole numbers from -128 to 127, in a byte each.
constexpr CodecRow kWhole = {
    .word = "whole",
    .sums = CodecSums::kPerMessage,
    .error_feedback = true,
    .bytes = [](std::int64_t numbers, double) { return (numbers + 3) / 4 * 4; },
    .encode =
        [](std::span<float> values, std::byte* code, const CodeKey&) {
          for (float& v : values) {
            const float whole = std::nearbyint(v);
            *code++ = static_cast<std::byte>(static_cast<std::int8_t>(whole));
            v -= whole;
          }
        },
    .decode_add =
        [](const std::byte* code, std::span<float> values, const CodeKey&) {
          for (float& v : values) v += static_cast<std::int8_t>(*code++);
        }};

/// Whole numbers that are added up as they travel.
constexpr CodecRow kWholeSums = {.word = "whole sums",
                                 .sums = CodecSums::kLinear,
                                 .error_feedback = true,
                                 .bytes = [](std::int64_t numbers, double) { return 4 * numbers; },
                                 .encode =
                                     [](std::span<float> values, std::byte* code, const CodeKey&) {
                                       for (float& v : values) {
                                         const float whole = std::nearbyint(v);
                                         std::memcpy(std::exchange(code, code + sizeof(float)),
                                                     &whole, sizeof(float));
                                         v -= whole;
                                       }
                                     },
                                 .decode_add = decode_floats};

/// As kWhole, but what is lost is lost.
constexpr CodecRow kForgets = {.word = "forgets",
                               .sums = CodecSums::kPerMessage,
                               .bytes = kWhole.bytes,
                               .encode = kWhole.encode,
                               .decode_add = kWhole.decode_add};

const std::vector<std::vector<int>> kPlaces = {{2}, {4}, {1, 1}, {1, 1, 1}, {2, 1}};

std::vector<float> numbers(int rank, int step, std::int64_t count) {
  Rng rng(static_cast<std::uint64_t>(1000 * rank + step), "encoded_sum_test");
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& v : out) v = static_cast<float>(8 * rng.uniform() - 4);
  return out;
}

/// In the order of ranks, as the owners add.
std::vector<float> sum(int ranks, int step, std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (int r = 0; r < ranks; ++r) {
    const std::vector<float> term = numbers(r, step, count);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += term[i];
  }
  return out;
}

Request request(OperationKind kind, const Buffer& in, const Buffer& out, EncodedSum& encoded) {
  return {.kind = kind, .in = {&in, 1}, .out = {&out, 1}, .encoding = &encoded};
}

TEST(SumOfCodes, ACodecThatLosesNothingGivesTheSum) {
  for (const std::vector<int>& hosts : kPlaces) {
    on_hosts(hosts, [](Communicator& c) {
      for (const std::int64_t count : {1, 5, 16, 200, 4096}) {
        SumOfCodes encoded(c, kExact, count);
        for (int step = 0; step < 3; ++step) {
          std::vector<float> values = numbers(c.rank(), step, count);
          const Buffer buffer = values;
          const Request r = request(OperationKind::kAllReduce, buffer, buffer, encoded);
          EXPECT_OK(step == 1 ? c.submit(r).wait() : c.run(r, Deadline::never()));
          EXPECT_EQ(values, sum(c.size(), step, count)) << count << " numbers";
        }
      }
    });
  }
}

TEST(SumOfCodes, ReduceScatterGivesEachRankItsPart) {
  for (const std::vector<int>& hosts : kPlaces) {
    on_hosts(hosts, [](Communicator& c) {
      const std::int64_t each = 21, count = each * c.size();
      SumOfCodes encoded(c, kExact, count);
      for (int step = 0; step < 2; ++step) {
        std::vector<float> values = numbers(c.rank(), step, count), part(each);
        const Buffer in = values, out = part;
        EXPECT_OK(
            c.run(request(OperationKind::kReduceScatter, in, out, encoded), Deadline::never()));
        const std::vector<float> all = sum(c.size(), step, count);
        EXPECT_TRUE(std::ranges::equal(
            part, std::span(all).subspan(static_cast<std::size_t>(each * c.rank()), part.size())));
      }
    });
  }
}

/// Of the sums of one step, by rank: what went in, what came out, and what is kept for each number.
struct Step {
  std::vector<std::vector<float>> in, out;
  std::vector<double> kept;  // by all ranks together

  Step(int ranks, std::int64_t count)
      : in(static_cast<std::size_t>(ranks)),
        out(in.size()),
        kept(static_cast<std::size_t>(count)) {}
};

/// Adds what this rank keeps: rows of parts, and a row of the part that it owns.
void add_kept(std::vector<double>& kept, SumOfCodes& sum, int rank) {
  const std::span<float> residual = sum.residual();
  const std::size_t each = residual.size() / static_cast<std::size_t>(sum.ranks() + 1);
  const std::size_t own = each * static_cast<std::size_t>(rank);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    kept[i] += residual[i];
    if (i >= own && i < own + each) kept[i] += residual[residual.size() - each + i - own];
  }
}

std::vector<Step> steps_of(const CodecRow& row, const std::vector<int>& hosts, std::int64_t count,
                           int steps) {
  std::mutex mutex;
  std::vector<Step> out;
  on_hosts(hosts, [&](Communicator& c) {
    const auto rank = static_cast<std::size_t>(c.rank());
    SumOfCodes sum(c, row, count);
    for (int step = 0; step < steps; ++step) {
      std::vector<float> values = numbers(c.rank(), step, count);
      {
        const std::lock_guard lock(mutex);
        if (std::ssize(out) == step) out.emplace_back(c.size(), count);
        out[static_cast<std::size_t>(step)].in[rank] = values;
      }
      const Buffer buffer = values;
      EXPECT_OK(c.run(request(OperationKind::kAllReduce, buffer, buffer, sum), Deadline::never()));
      const std::lock_guard lock(mutex);
      Step& own = out[static_cast<std::size_t>(step)];
      own.out[rank] = std::move(values);
      add_kept(own.kept, sum, c.rank());
    }
  });
  return out;
}

/// In each step all ranks get the same bits, and what goes in with what was kept before is what
/// comes out with what is kept now.
void expect_nothing_lost(const std::vector<Step>& steps, const std::string& what) {
  std::vector<double> before(steps.front().kept.size());
  for (const Step& step : steps) {
    for (const auto& one : step.out) ASSERT_EQ(one, step.out.front()) << what << ": other bits";
    for (std::size_t i = 0; i < before.size(); ++i) {
      double in = before[i];
      for (const auto& rank : step.in) in += rank[i];
      ASSERT_NEAR(in, step.out.front()[i] + step.kept[i], 1e-4) << what << ", number " << i;
    }
    before = step.kept;
  }
}

// Whole numbers have one sum, in whatever order they are added up.
TEST(SumOfCodes, LinearCodesAreScatteredAsTheyAreReduced) {
  on_hosts({2, 1}, [](Communicator& c) {
    const std::int64_t each = 21, count = each * c.size();
    SumOfCodes reduced(c, kWholeSums, count), scattered(c, kWholeSums, count);
    for (int step = 0; step < 3; ++step) {
      std::vector<float> values = numbers(c.rank(), step, count), part(each), all = values;
      const Buffer in = values, out = part, whole = all;
      EXPECT_OK(
          c.run(request(OperationKind::kReduceScatter, in, out, scattered), Deadline::never()));
      EXPECT_OK(
          c.run(request(OperationKind::kAllReduce, whole, whole, reduced), Deadline::never()));
      EXPECT_TRUE(std::ranges::equal(
          part, std::span(all).subspan(static_cast<std::size_t>(each * c.rank()), part.size())));
    }
  });
}

TEST(SumOfCodes, WhatACodecLosesComesLater) {
  for (const CodecRow* row : {&kWhole, &kWholeSums}) {
    for (const std::vector<int>& hosts : kPlaces) {
      const std::vector<Step> steps = steps_of(*row, hosts, 61, 20);
      expect_nothing_lost(steps, std::string(row->word));
      double kept = 0;
      for (const double v : steps.back().kept) kept += std::fabs(v);
      EXPECT_GT(kept, 1);
      for (const float v : steps.back().out.front()) EXPECT_EQ(v, std::nearbyint(v));
    }
  }
}

// With every codec, whatever the number of ranks, in the inner part of a host and between hosts.
TEST(SumOfCodes, EveryCodecGivesAllRanksTheSameBitsAndLosesNothing) {
  for (const CodecRow& row : codec_rows()) {
    if (row.encode == nullptr) continue;
    for (int ranks = 1; ranks <= 9; ranks += kSanitized ? 4 : 1) {
      for (const std::int64_t count : {1, 37, 2311}) {
        const std::string what = std::string(row.word) + " of " + std::to_string(count) + " on " +
                                 std::to_string(ranks) + " ranks";
        const std::vector<Step> steps = steps_of(row, {ranks}, count, 5);
        if (row.error_feedback) {
          expect_nothing_lost(steps, what);
        } else {
          for (const Step& s : steps) {
            for (const auto& one : s.out) ASSERT_EQ(one, s.out.front()) << what;
          }
        }
      }
    }
  }
}

TEST(SumOfCodes, WithoutErrorFeedbackNothingIsKept) {
  for (const Step& step : steps_of(kForgets, {3}, 61, 3)) {
    EXPECT_EQ(step.kept, std::vector<double>(61));
    EXPECT_EQ(step.out[1], step.out[0]);
  }
}

// What ranks draw is another thing on each of them, in each part, and in each sum; but another run
// draws it again.
TEST(SumOfCodes, WhatIsDrawnDependsOnRankPartAndSumAlone) {
  std::mutex mutex;
  static std::mutex* lock_of_seeds = nullptr;
  static std::multiset<std::uint64_t>* drawn = nullptr;
  constexpr CodecRow kSeeds = {
      .word = "seeds",
      .sums = CodecSums::kPerMessage,
      .bytes = kExact.bytes,
      .encode =
          [](std::span<float> values, std::byte* code, const CodeKey& key) {
            const std::lock_guard lock(*lock_of_seeds);
            drawn->insert(key.seed);
            kExact.encode(values, code, key);
          },
      .decode_add = kExact.decode_add};
  lock_of_seeds = &mutex;
  std::vector<std::multiset<std::uint64_t>> runs(2);
  for (auto& run : runs) {
    drawn = &run;
    steps_of(kSeeds, {3}, 61, 4);
    // in each sum each of 3 ranks encodes 3 terms, and a sum
    EXPECT_EQ(run.size(), 4u * 3 * 4);
    EXPECT_EQ(std::set<std::uint64_t>(run.begin(), run.end()).size(), run.size());
  }
  EXPECT_EQ(runs[0], runs[1]);
}

TEST(SumOfCodes, AnotherOneGoesOnBitForBit) {
  for (const Codec codec : {Codec::kQsgd, Codec::kTernGrad}) {
    on_ranks(3, [&](Communicator& c) {
      SumOfCodes first(c, row_of(codec), 500), second(c, row_of(codec), 500);
      std::vector<std::vector<float>> whole;
      for (int step = 0; step < 4; ++step) {
        if (step == 2) second.set_sums(first.sums());
        for (SumOfCodes* sum : {&first, &second}) {
          if (sum == &second && step < 2) continue;
          std::vector<float>& values = whole.emplace_back(numbers(c.rank(), step, 500));
          const Buffer buffer = values;
          EXPECT_OK(
              c.run(request(OperationKind::kAllReduce, buffer, buffer, *sum), Deadline::never()));
        }
      }
      EXPECT_EQ(whole[2], whole[3]);
      EXPECT_EQ(whole[4], whole[5]);
    });
  }
}

/// How far from the mean of the ranks' minima descent ends, which begins at 0; and at first.
std::pair<double, double> distance_after_descent(const CodecRow& row, int steps) {
  constexpr std::int64_t kCount = 211;
  constexpr int kRanks = 3;
  const std::vector<float> minima = sum(kRanks, 0, kCount);
  std::vector<float> x(kCount);
  on_ranks(kRanks, [&](Communicator& c) {
    SumOfCodes encoded(c, row, kCount, 0.1);
    const std::vector<float> own = numbers(c.rank(), 0, kCount);
    std::vector<float> mine(kCount), gradient(kCount);
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < mine.size(); ++i) gradient[i] = (mine[i] - own[i]) / kRanks;
      const Buffer buffer = gradient;
      EXPECT_OK(
          c.run(request(OperationKind::kAllReduce, buffer, buffer, encoded), Deadline::never()));
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] -= 0.02f * gradient[i];
    }
    if (c.rank() == 0) x = mine;
  });
  double end = 0, begin = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double wanted = minima[i] / kRanks;
    end = std::max(end, std::fabs(x[i] - wanted));
    begin = std::max(begin, std::fabs(wanted));
  }
  return {end, begin};
}

// Whatever a codec leaves of a gradient: with what it lost, or by chance, the minimum is reached.
TEST(SumOfCodes, DescentReachesTheMinimumWithEveryCodec) {
  for (const CodecRow& row : codec_rows()) {
    if (row.encode == nullptr) continue;
    const auto [end, begin] = distance_after_descent(row, 500);
    EXPECT_LT(end, 0.15 * begin) << row.word;
  }
  // but by the signs alone it is not
  CodecRow forgets = row_of(Codec::kSign);
  forgets.error_feedback = false;
  const auto [end, begin] = distance_after_descent(forgets, 500);
  EXPECT_GT(end, 0.3 * begin);
}

// All ranks see it, and the sums after it are sound.
TEST(SumOfCodes, ANumberThatIsNotFiniteComesOutOnAllRanksOnce) {
  for (const CodecRow& row : codec_rows()) {
    if (row.encode == nullptr) continue;
    on_ranks(3, [&](Communicator& c) {
      constexpr std::int64_t kCount = 1001;
      SumOfCodes sum(c, row, kCount);
      for (int step = 0; step < 3; ++step) {
        std::vector<float> values = numbers(c.rank(), step, kCount);
        if (step == 1 && c.rank() == 2) values[500] = std::numeric_limits<float>::quiet_NaN();
        const Buffer buffer = values;
        EXPECT_OK(
            c.run(request(OperationKind::kAllReduce, buffer, buffer, sum), Deadline::never()));
        EXPECT_EQ(std::ranges::all_of(values, [](float v) { return std::isfinite(v); }), step != 1)
            << row.word << " on rank " << c.rank();
      }
    });
  }
}

TEST(SumOfCodes, ARankSendsItsCodeTwiceButForItsOwnPart) {
  constexpr std::int64_t kCount = 3 * 8 * 1000;
  on_hosts({1, 1, 1}, [](Communicator& c) {
    SumOfCodes encoded(c, kWhole, kCount);
    std::vector<float> values = numbers(c.rank(), 0, kCount);
    const Buffer buffer = values;
    const std::uint64_t before = c.bytes_sent();
    EXPECT_OK(
        c.run(request(OperationKind::kAllReduce, buffer, buffer, encoded), Deadline::never()));
    EXPECT_EQ(c.bytes_sent() - before, 2 * 2 * kCount / 3);
  });
}

TEST(SumOfCodes, RefusesWhatItCannotDo) {
  on_ranks(2, [](Communicator& c) {
    SumOfCodes encoded(c, kWhole, 16);
    std::vector<float> values(16), others(8);
    std::vector<double> wide(16);
    const Buffer whole = values, part = others, doubles = wide;
    const auto refused = [&](const Request& r) {
      return c.run(r, Deadline::never()).code() == Code::kInvalidArgument;
    };
    EXPECT_TRUE(refused(request(OperationKind::kBroadcast, whole, whole, encoded)));
    EXPECT_TRUE(refused(request(OperationKind::kAllReduce, doubles, doubles, encoded)));
    EXPECT_TRUE(refused(request(OperationKind::kAllReduce, part, part, encoded)));
    EXPECT_TRUE(refused(request(OperationKind::kReduceScatter, whole, whole, encoded)));
    Request average = request(OperationKind::kAllReduce, whole, whole, encoded);
    average.reduction = ReduceOp::kAverage;
    EXPECT_TRUE(refused(average));
    Request named = request(OperationKind::kAllReduce, whole, whole, encoded);
    named.algorithm = "ring_all_reduce";
    EXPECT_TRUE(refused(named));
    const Status still =
        c.run(request(OperationKind::kAllReduce, whole, whole, encoded), Deadline::never());
    EXPECT_TRUE(still.ok()) << "a refusal must not end the group: " << still.to_string();
  });
}

}  // namespace
}  // namespace stormo::comm
