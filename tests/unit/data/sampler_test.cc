#include <stormo/data/sampler.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace stormo::data {
namespace {

using Indices = std::vector<std::int64_t>;

/// The global batch of `step`: the parts of all ranks, in rank order.
Indices global_batch(std::vector<Sampler>& ranks, std::int64_t step) {
  Indices all;
  for (Sampler& sampler : ranks) {
    const auto slice = sampler.slice(step);
    all.insert(all.end(), slice.indices.begin(), slice.indices.end());
  }
  return all;
}

std::vector<Sampler> make_ranks(std::int64_t samples, std::int64_t batch, int size,
                                bool shuffle = true, std::uint64_t seed = 7) {
  std::vector<Sampler> ranks;
  for (int r = 0; r < size; ++r) ranks.emplace_back(samples, batch, seed, shuffle, r, size);
  return ranks;
}

struct Case {
  std::int64_t samples;
  std::int64_t batch;
};
constexpr Case kCases[] = {{1, 1},  {1, 5},   {7, 1},  {7, 3},   {12, 4},
                           {13, 4}, {31, 31}, {31, 8}, {30, 64}, {101, 10}};

TEST(Sampler, UsesEverySampleExactlyOncePerEpochOnAnyNumberOfRanks) {
  for (const auto [samples, batch] : kCases) {
    for (int size = 1; size <= 7; ++size) {
      auto ranks = make_ranks(samples, batch, size);
      const std::int64_t steps = ranks[0].steps_per_epoch();
      EXPECT_EQ(steps, (samples + batch - 1) / batch);
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        Indices seen;
        for (std::int64_t s = 0; s < steps; ++s) {
          const Indices part = global_batch(ranks, epoch * steps + s);
          EXPECT_EQ(std::ssize(part), std::min(batch, samples - s * batch));
          seen.insert(seen.end(), part.begin(), part.end());
        }
        std::ranges::sort(seen);
        Indices expected(static_cast<std::size_t>(samples));
        std::iota(expected.begin(), expected.end(), 0);
        EXPECT_EQ(seen, expected) << samples << " " << batch << " " << size;
      }
    }
  }
}

TEST(Sampler, GlobalBatchDoesNotDependOnTheNumberOfRanks) {
  for (const auto [samples, batch] : kCases) {
    auto one = make_ranks(samples, batch, 1);
    for (int size = 2; size <= 7; ++size) {
      auto many = make_ranks(samples, batch, size);
      for (std::int64_t step = 0; step < 2 * one[0].steps_per_epoch(); ++step) {
        EXPECT_EQ(global_batch(many, step), global_batch(one, step));
      }
    }
  }
}

TEST(Sampler, SharesDifferByAtMostOneAndKnowTheWhole) {
  for (const auto [samples, batch] : kCases) {
    for (int size = 1; size <= 7; ++size) {
      auto ranks = make_ranks(samples, batch, size);
      for (std::int64_t step = 0; step < ranks[0].steps_per_epoch(); ++step) {
        std::int64_t least = batch, most = 0, sum = 0;
        for (Sampler& sampler : ranks) {
          const auto slice = sampler.slice(step);
          const std::int64_t count = std::ssize(slice.indices);
          least = std::min(least, count);
          most = std::max(most, count);
          sum += count;
          EXPECT_EQ(slice.global_size, std::min(batch, samples - step * batch));
          EXPECT_EQ(slice.epoch, 0);
        }
        EXPECT_LE(most - least, 1);
        EXPECT_EQ(sum, ranks[0].slice(step).global_size);
      }
    }
  }
}

TEST(Sampler, OrdersDifferByEpochAndBySeed) {
  auto a = make_ranks(1000, 1000, 1);
  auto b = make_ranks(1000, 1000, 1, true, 8);
  EXPECT_NE(global_batch(a, 0), global_batch(a, 1));
  EXPECT_NE(global_batch(a, 0), global_batch(b, 0));
}

TEST(Sampler, AnyStepCanBeAskedForInAnyOrder) {
  auto forward = make_ranks(23, 4, 2);
  std::vector<Indices> expected;
  for (std::int64_t s = 0; s < 20; ++s) expected.push_back(global_batch(forward, s));
  auto backward = make_ranks(23, 4, 2);
  for (std::int64_t s = 19; s >= 0; --s) {
    EXPECT_EQ(global_batch(backward, s), expected[static_cast<std::size_t>(s)]);
  }
}

TEST(Sampler, KeepsTheOrderWithoutShuffling) {
  auto ranks = make_ranks(10, 4, 3, false);
  EXPECT_EQ(global_batch(ranks, 0), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(global_batch(ranks, 2), (Indices{8, 9}));
  EXPECT_EQ(global_batch(ranks, 3), (Indices{0, 1, 2, 3}));
  EXPECT_TRUE(ranks[2].slice(2).indices.empty());
}

}  // namespace
}  // namespace stormo::data
