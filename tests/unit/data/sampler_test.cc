#include <stormo/data/sampler.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <stormo/base/rng.h>

namespace stormo::data {
namespace {

using Indices = std::vector<std::int64_t>;

/// Cursor of a step when nothing was resized: the last step of an epoch of 13 may have 1 sample.
std::int64_t cursor_of(std::int64_t step, std::int64_t samples, std::int64_t batch) {
  const std::int64_t steps = (samples + batch - 1) / batch;
  return step / steps * samples + step % steps * batch;
}

/// The global batch at `cursor`: the parts of all ranks, in rank order.
Indices global_batch(std::vector<Sampler>& ranks, std::int64_t cursor) {
  Indices all;
  for (Sampler& sampler : ranks) {
    const auto slice = sampler.slice(cursor);
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
          const Indices part = global_batch(ranks, cursor_of(epoch * steps + s, samples, batch));
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
        const std::int64_t cursor = cursor_of(step, samples, batch);
        EXPECT_EQ(global_batch(many, cursor), global_batch(one, cursor));
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
          const auto slice = sampler.slice(step * batch);
          const std::int64_t count = std::ssize(slice.indices);
          least = std::min(least, count);
          most = std::max(most, count);
          sum += count;
          EXPECT_EQ(slice.global_size, std::min(batch, samples - step * batch));
          EXPECT_EQ(slice.epoch, 0);
        }
        EXPECT_LE(most - least, 1);
        EXPECT_EQ(sum, ranks[0].slice(step * batch).global_size);
      }
    }
  }
}

TEST(Sampler, SeveralSharesAreThoseOfAsManyRanks) {
  for (const auto [samples, batch] : kCases) {
    auto ranks = make_ranks(samples, batch, 7);
    for (int first = 0; first < 7; ++first) {
      for (int count = 1; first + count <= 7; ++count) {
        Sampler several(samples, batch, 7, true, first, 7);
        several.take_shares(count);
        std::vector<Sampler> those(ranks.begin() + first, ranks.begin() + first + count);
        for (std::int64_t s = 0; s < 2 * ranks[0].steps_per_epoch(); ++s) {
          const std::int64_t cursor = cursor_of(s, samples, batch);
          EXPECT_EQ(several.slice(cursor).indices, global_batch(those, cursor));
        }
      }
    }
  }
}

TEST(Sampler, OrdersDifferByEpochAndBySeed) {
  auto a = make_ranks(1000, 1000, 1);
  auto b = make_ranks(1000, 1000, 1, true, 8);
  EXPECT_NE(global_batch(a, 0), global_batch(a, 1000));
  EXPECT_NE(global_batch(a, 0), global_batch(b, 0));
}

TEST(Sampler, AnyStepCanBeAskedForInAnyOrder) {
  auto forward = make_ranks(23, 4, 2);
  std::vector<Indices> expected;
  for (std::int64_t s = 0; s < 20; ++s)
    expected.push_back(global_batch(forward, cursor_of(s, 23, 4)));
  auto backward = make_ranks(23, 4, 2);
  for (std::int64_t s = 19; s >= 0; --s) {
    EXPECT_EQ(global_batch(backward, cursor_of(s, 23, 4)), expected[static_cast<std::size_t>(s)]);
  }
}

TEST(Sampler, KeepsTheOrderWithoutShuffling) {
  auto ranks = make_ranks(10, 4, 3, false);
  EXPECT_EQ(global_batch(ranks, 0), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(global_batch(ranks, 8), (Indices{8, 9}));
  EXPECT_EQ(global_batch(ranks, 10), (Indices{0, 1, 2, 3}));
  EXPECT_TRUE(ranks[2].slice(8).indices.empty());
}

// Runs of other numbers of ranks and other batches, each going on where the one before stopped.
TEST(Sampler, AResizeInMidEpochRepeatsAndLosesNothing) {
  struct Run {
    int ranks;
    std::int64_t batch;
    int steps;
  };
  const std::vector<Run> runs = {{4, 8, 3}, {2, 6, 4}, {6, 30, 1}, {1, 5, 9}, {3, 7, 40}};
  constexpr std::int64_t kSamples = 103;
  for (const bool balanced : {false, true}) {
    std::vector<std::int32_t> lengths(kSamples);
    for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int>(i * 37 % 50);
    std::int64_t cursor = 0;
    std::vector<Indices> epochs(5);
    for (const Run& run : runs) {
      auto ranks = make_ranks(kSamples, run.batch, run.ranks);
      for (Sampler& sampler : ranks) {
        if (balanced) sampler.balance(lengths);
      }
      for (int step = 0; step < run.steps; ++step) {
        const Indices part = global_batch(ranks, cursor);
        Indices& seen = epochs[static_cast<std::size_t>(ranks[0].slice(cursor).epoch)];
        seen.insert(seen.end(), part.begin(), part.end());
        cursor = ranks[0].slice(cursor).next;
        EXPECT_EQ(ranks.back().slice(cursor).next, ranks[0].slice(cursor).next);
      }
    }
    ASSERT_GT(cursor, 3 * kSamples);
    for (int epoch = 0; epoch < 3; ++epoch) {
      Indices seen = epochs[static_cast<std::size_t>(epoch)], expected(kSamples);
      std::ranges::sort(seen);
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(seen, expected) << "epoch " << epoch;
    }
  }
}

TEST(Sampler, CountsTheStepsThatAreLeft) {
  for (const auto [samples, batch] : kCases) {
    Sampler sampler(samples, batch, 1, true, 0, 1);
    for (std::int64_t start = 0; start < 4 * samples; ++start) {
      std::int64_t steps = 0;
      for (std::int64_t cursor = start; cursor < 3 * samples; ++steps) {
        cursor = sampler.slice(cursor).next;
      }
      EXPECT_EQ(sampler.steps_until(start, 3), steps);
    }
  }
}

/// (most - least) / mean of what the ranks of one step are given.
double spread(std::vector<Sampler>& ranks, std::int64_t cursor,
              const std::vector<std::int32_t>& lengths) {
  std::vector<double> sums;
  for (Sampler& sampler : ranks) {
    double sum = 0;
    for (const auto i : sampler.slice(cursor).indices) sum += lengths[static_cast<std::size_t>(i)];
    sums.push_back(sum);
  }
  const auto [least, most] = std::ranges::minmax(sums);
  return (most - least) * static_cast<double>(sums.size()) /
         std::accumulate(sums.begin(), sums.end(), 0.0);
}

TEST(Sampler, DealingByLengthKeepsTokensOfRanksWithinATenth) {
  constexpr std::int64_t kSamples = 2000;
  Rng rng(3, "lengths");
  std::vector<std::int32_t> uniform(kSamples), skewed(kSamples);
  for (auto& l : uniform) l = 10 + static_cast<int>(rng.below(91));  // 10x
  for (auto& l : skewed) l = static_cast<int>(10 * std::pow(10.0, rng.uniform()));
  for (const auto& lengths : {uniform, skewed}) {
    for (const int size : {2, 3, 4, 8}) {
      const std::int64_t batch = 16 * size;
      auto dealt = make_ranks(kSamples, batch, size), drawn = dealt;
      for (Sampler& sampler : dealt) sampler.balance(lengths);
      double worst = 0, worst_drawn = 0;
      for (std::int64_t cursor = 0; cursor + batch <= kSamples; cursor += batch) {
        worst = std::max(worst, spread(dealt, cursor, lengths));
        worst_drawn = std::max(worst_drawn, spread(drawn, cursor, lengths));
        Indices a = global_batch(dealt, cursor), b = global_batch(drawn, cursor);
        std::ranges::sort(a);
        std::ranges::sort(b);
        EXPECT_EQ(a, b);  // the same samples, differently shared
        for (Sampler& sampler : dealt) EXPECT_EQ(sampler.slice(cursor).indices.size(), 16u);
      }
      EXPECT_LT(worst, 0.1) << size << " ranks";
      EXPECT_GT(worst_drawn, 0.3) << "the lengths are too equal to show anything";
    }
  }
}

}  // namespace
}  // namespace stormo::data
