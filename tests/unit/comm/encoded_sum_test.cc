// Sums whose terms travel encoded: what ranks get, what is kept for the next sum, and what they
// send.
#include <stormo/comm/codec/encoded_sum.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "stormo/base/rng.h"
#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

/// Loses nothing.
const Encoder kExact = {.row = {.word = "exact", .block = 16, .block_bytes = 64},
                        .encode =
                            [](std::span<float> values, std::byte* code) {
                              std::memcpy(code, values.data(), values.size_bytes());
                              std::ranges::fill(values, 0.0f);
                            },
                        .decode_add =
                            [](const std::byte* code, std::span<float> values) {
                              for (float& v : values) {
                                float decoded = 0;
                                std::memcpy(&decoded, std::exchange(code, code + sizeof(float)),
                                            sizeof(float));
                                v += decoded;
                              }
                            }};

/// Whole numbers from -128 to 127, in a byte each.
const Encoder kWhole = {.row = {.word = "whole", .block = 8, .block_bytes = 8},
                        .encode =
                            [](std::span<float> values, std::byte* code) {
                              for (float& v : values) {
                                const float whole = std::nearbyint(v);
                                *code++ = static_cast<std::byte>(static_cast<std::int8_t>(whole));
                                v -= whole;
                              }
                            },
                        .decode_add =
                            [](const std::byte* code, std::span<float> values) {
                              for (float& v : values) v += static_cast<std::int8_t>(*code++);
                            }};

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

TEST(EncodedSum, ACodecThatLosesNothingGivesTheSum) {
  for (const std::vector<int>& hosts : kPlaces) {
    on_hosts(hosts, [](Communicator& c) {
      for (const std::int64_t count : {1, 5, 16, 200, 4096}) {
        EncodedSum encoded(c, kExact, count);
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

TEST(EncodedSum, ReduceScatterGivesEachRankItsPart) {
  for (const std::vector<int>& hosts : kPlaces) {
    on_hosts(hosts, [](Communicator& c) {
      const std::int64_t each = 21, count = each * c.size();
      EncodedSum encoded(c, kExact, count);
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

// Over many steps nothing gets lost: what has come out, and what is kept, is what went in.
TEST(EncodedSum, WhatACodecLosesComesLater) {
  constexpr std::int64_t kCount = 61;
  constexpr int kSteps = 20;
  for (const std::vector<int>& hosts : kPlaces) {
    std::mutex mutex;
    double kept = 0;
    std::vector<std::vector<float>> outcomes;  // of each rank, of the last step
    double came = 0, went = 0;
    on_hosts(hosts, [&](Communicator& c) {
      EncodedSum encoded(c, kWhole, kCount);
      std::vector<float> values;
      double mine = 0, out = 0;
      for (int step = 0; step < kSteps; ++step) {
        values = numbers(c.rank(), step, kCount);
        mine = std::accumulate(values.begin(), values.end(), mine);
        const Buffer buffer = values;
        EXPECT_OK(
            c.run(request(OperationKind::kAllReduce, buffer, buffer, encoded), Deadline::never()));
        for (const float v : values) EXPECT_EQ(v, std::nearbyint(v)) << "no whole number came";
        out = std::accumulate(values.begin(), values.end(), out);
      }
      const std::lock_guard lock(mutex);
      const std::span<float> residual = encoded.residual();
      for (const float v : residual) EXPECT_LE(std::fabs(v), 0.5f);
      kept = std::accumulate(residual.begin(), residual.end(), kept);
      went += mine;
      came = out;
      outcomes.push_back(values);
    });
    for (const auto& one : outcomes) EXPECT_EQ(one, outcomes.front()) << "ranks got other bits";
    EXPECT_NEAR(came + kept, went, 1e-3);
    EXPECT_GT(std::fabs(kept), 1e-3);
  }
}

TEST(EncodedSum, ARankSendsItsCodeTwiceButForItsOwnPart) {
  constexpr std::int64_t kCount = 3 * 8 * 1000;
  on_hosts({1, 1, 1}, [](Communicator& c) {
    EncodedSum encoded(c, kWhole, kCount);
    std::vector<float> values = numbers(c.rank(), 0, kCount);
    const Buffer buffer = values;
    const std::uint64_t before = c.bytes_sent();
    EXPECT_OK(
        c.run(request(OperationKind::kAllReduce, buffer, buffer, encoded), Deadline::never()));
    EXPECT_EQ(c.bytes_sent() - before, 2 * 2 * kCount / 3);
  });
}

TEST(EncodedSum, RefusesWhatItCannotDo) {
  on_ranks(2, [](Communicator& c) {
    EncodedSum encoded(c, kWhole, 16);
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
