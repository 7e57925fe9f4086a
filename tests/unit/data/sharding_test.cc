#include <stormo/data/sharding.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/data/sampler.h>

#include "tests/long.h"

namespace stormo::data {
namespace {

using Order = std::vector<std::int64_t>;
using Strata = std::vector<std::int32_t>;
using ::testing::ElementsAre;

constexpr Sharding kStratifiedKinds[] = {Sharding::kStratified, Sharding::kStrictStratified};

Order every_index(std::int64_t samples) {
  Order all(static_cast<std::size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Class c has about weight^c as many samples as class 0; in random order, or sorted as in a file.
Strata random_classes(std::int64_t samples, int classes, double weight, bool sorted,
                      std::uint64_t seed) {
  Rng rng(seed, "classes");
  Strata strata(static_cast<std::size_t>(samples));
  for (auto& c : strata) {
    double left =
        rng.uniform() * (weight == 1 ? classes : (1 - std::pow(weight, classes)) / (1 - weight));
    for (c = 0; c + 1 < classes && left >= std::pow(weight, c); ++c) left -= std::pow(weight, c);
  }
  if (sorted) std::ranges::sort(strata);
  return strata;
}

std::vector<Sampler> sharded_ranks(Sharding sharding, const Strata& strata, std::int64_t batch,
                                   int size, std::uint64_t seed) {
  std::vector<Sampler> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back(std::ssize(strata), batch, seed, /*shuffle=*/true, r, size);
    ranks.back().shard(sharding, strata);
  }
  return ranks;
}

/// Samples of each class.
std::vector<double> classes_of(const Order& indices, const Strata& strata) {
  std::vector<double> counts(static_cast<std::size_t>(std::ranges::max(strata)) + 1);
  for (const auto i : indices)
    ++counts[static_cast<std::size_t>(strata[static_cast<std::size_t>(i)])];
  return counts;
}

/// The largest |n_rc - n_c / ranks| over ranks r and classes c.
double largest_gap(const std::vector<Order>& by_rank, const Strata& strata) {
  Order together;
  for (const Order& part : by_rank) together.insert(together.end(), part.begin(), part.end());
  const std::vector<double> whole = classes_of(together, strata);
  double gap = 0;
  for (const Order& part : by_rank) {
    const std::vector<double> counts = classes_of(part, strata);
    for (std::size_t c = 0; c < whole.size(); ++c) {
      gap = std::max(gap, std::fabs(counts[c] - whole[c] / static_cast<double>(by_rank.size())));
    }
  }
  return gap;
}

/// How many samples more the largest part has than the smallest.
std::int64_t size_gap(const std::vector<Order>& by_rank) {
  const auto [least, most] = std::ranges::minmax(by_rank, {}, &Order::size);
  return std::ssize(most) - std::ssize(least);
}

/// One epoch of all ranks: what it promises of sizes and of using every sample once, and the gap of
/// its classes.
struct EpochGaps {
  double epoch = 0;
  double batch = 0;  // of the worst one
};
EpochGaps check_epoch(std::vector<Sampler>& ranks, const Strata& strata, std::int64_t epoch) {
  const std::int64_t samples = std::ssize(strata);
  std::vector<Order> seen(ranks.size());
  EpochGaps gaps;
  for (std::int64_t cursor = epoch * samples; cursor < (epoch + 1) * samples;) {
    std::vector<Order> batch;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      batch.push_back(ranks[r].slice(cursor).indices);
      seen[r].insert(seen[r].end(), batch[r].begin(), batch[r].end());
    }
    EXPECT_LE(size_gap(batch), 1);
    gaps.batch = std::max(gaps.batch, largest_gap(batch, strata));
    cursor = ranks[0].slice(cursor).next;
  }
  gaps.epoch = largest_gap(seen, strata);
  EXPECT_LE(size_gap(seen), 1);
  Order used;
  for (const Order& part : seen) used.insert(used.end(), part.begin(), part.end());
  std::ranges::sort(used);
  EXPECT_EQ(used, every_index(samples));
  return gaps;
}

// Every combination: sizes 1, primes, multiples; classes that have fewer samples than there are
// ranks; batches that leave a rest, that are larger than the data, of one sample per rank.
TEST(Sharding, StratifiedEpochsAndStrictBatchesAreWithinOneOfTheirShare) {
  double random_batch = 0, random_epoch = 0;  // what the promises are compared with
  for (const std::int64_t samples : {1, 2, 7, 30, 101, 256}) {
    for (const int classes : {1, 2, 3, 10, 40}) {
      for (const double weight : {1.0, 0.6}) {
        const std::uint64_t seed = static_cast<std::uint64_t>(samples * 100 + classes);
        const bool sorted = classes % 2 == 0;
        const Strata strata = random_classes(samples, classes, weight, sorted, seed);
        for (const int size : {1, 2, 3, 4, 7, 8, 64}) {
          for (const std::int64_t local : {1, 2, 5, 11}) {
            // in the short form half of them, among which each two values meet
            if (!is_long_form() && (classes + size + local) % 2 != 0) continue;
            for (const Sharding kind : kStratifiedKinds) {
              const bool strict = kind == Sharding::kStrictStratified;
              const std::int64_t batch = local * size + (strict ? 0 : size / 2);
              auto ranks = sharded_ranks(kind, strata, batch, size, seed);
              for (const std::int64_t epoch : {0, 1}) {
                const EpochGaps gaps = check_epoch(ranks, strata, epoch);
                EXPECT_LE(gaps.epoch, 1)
                    << samples << " " << classes << " " << size << " " << batch;
                if (strict) {
                  EXPECT_LE(gaps.batch, 1)
                      << samples << " " << classes << " " << size << " " << batch;
                }
              }
            }
            auto ranks = sharded_ranks(Sharding::kShuffled, strata, local * size, size, seed);
            const std::int64_t first = ranks[0].slice(0).global_size;
            std::vector<Order> batch;
            for (Sampler& sampler : ranks) batch.push_back(sampler.slice(0).indices);
            random_batch = std::max(random_batch, largest_gap(batch, strata));
            if (first == samples) random_epoch = std::max(random_epoch, largest_gap(batch, strata));
          }
        }
      }
    }
  }
  EXPECT_GT(random_batch, 2) << "these cases show nothing";
  EXPECT_GT(random_epoch, 2) << "these cases show nothing";
}

// The classes of a local batch are those of the data, not only those of the other ranks.
TEST(Sharding, StrictBatchesRepresentTheWhole) {
  constexpr int kRanks = 4, kClasses = 5, kLocal = 20;
  const Strata strata = random_classes(kRanks * kLocal * 10, kClasses, 0.7, true, 3);
  const std::vector<double> whole = classes_of(every_index(std::ssize(strata)), strata);
  auto ranks = sharded_ranks(Sharding::kStrictStratified, strata, kRanks * kLocal, kRanks, 5);
  for (std::int64_t cursor = 0; cursor < std::ssize(strata); cursor += kRanks * kLocal) {
    for (Sampler& sampler : ranks) {
      const std::vector<double> mine = classes_of(sampler.slice(cursor).indices, strata);
      for (std::size_t c = 0; c < whole.size(); ++c) {
        EXPECT_NEAR(mine[c], whole[c] * kLocal / static_cast<double>(strata.size()), 1.001);
      }
    }
  }
}

TEST(Sharding, ContiguousGivesEachRankItsPartOfTheFileInEveryEpoch) {
  for (const int size : {1, 2, 3, 5, 20}) {
    auto ranks = sharded_ranks(Sharding::kContiguous, Strata(17), 6, size, 3);
    Order whole_before;
    for (const std::int64_t epoch : {0, 1}) {
      Order whole, in_order;
      for (Sampler& sampler : ranks) {
        Order mine;
        for (std::int64_t cursor = 17 * epoch; cursor < 17 * (epoch + 1);) {
          const auto slice = sampler.slice(cursor);
          mine.insert(mine.end(), slice.indices.begin(), slice.indices.end());
          cursor = slice.next;
        }
        whole.insert(whole.end(), mine.begin(), mine.end());
        std::ranges::sort(mine);
        in_order.insert(in_order.end(), mine.begin(), mine.end());
      }
      EXPECT_EQ(in_order, every_index(17));  // one part after the other
      if (size < 17) {
        EXPECT_NE(whole, whole_before);
      }
      whole_before = whole;
    }
  }
}

// Runs of other ranks and batches, each going on where the one before stopped, with its layout.
TEST(Sharding, AResizeInMidEpochRepeatsAndLosesNothingAndTheNextEpochIsStratified) {
  struct Run {
    int ranks;
    std::int64_t batch;
    int steps;
  };
  const std::vector<Run> runs = {{4, 8, 3}, {2, 6, 4}, {6, 30, 1}, {1, 5, 9}, {3, 9, 40}};
  const Strata strata = random_classes(103, 4, 1, true, 2);
  for (const Sharding kind :
       {Sharding::kContiguous, Sharding::kStratified, Sharding::kStrictStratified}) {
    std::int64_t cursor = 0;
    EpochLayout layout{4, 8};
    std::vector<Order> epochs(5);
    for (const Run& run : runs) {
      auto ranks = sharded_ranks(kind, strata, run.batch, run.ranks, 7);
      for (Sampler& sampler : ranks) sampler.keep_layout(cursor, layout);
      for (int step = 0; step < run.steps; ++step) {
        const std::int64_t next = ranks[0].slice(cursor).next;
        for (Sampler& sampler : ranks) {
          const auto slice = sampler.slice(cursor);
          Order& seen = epochs[static_cast<std::size_t>(slice.epoch)];
          seen.insert(seen.end(), slice.indices.begin(), slice.indices.end());
          EXPECT_EQ(slice.next, next);
        }
        cursor = next;
        layout = ranks.back().layout(cursor);
      }
      if (&run != &runs.back()) continue;
      EXPECT_EQ(layout, (EpochLayout{run.ranks, run.batch}));
      if (kind != Sharding::kContiguous) {
        EXPECT_LE(check_epoch(ranks, strata, 3).epoch, 1);
      }
    }
    ASSERT_GT(cursor, 3 * 103);
    for (std::size_t epoch = 0; epoch < 3; ++epoch) {
      std::ranges::sort(epochs[epoch]);
      EXPECT_EQ(epochs[epoch], every_index(103)) << epoch;
    }
  }
}

TEST(Sharding, OrdersDifferByEpochSeedAndRankAndAreTheSameOnEveryCall) {
  const Strata strata(64);
  for (const Sharding kind :
       {Sharding::kContiguous, Sharding::kStratified, Sharding::kStrictStratified}) {
    const auto order = [&](std::uint64_t seed, std::int64_t epoch, int ranks) {
      return sharded_order(kind, 64, strata, {ranks, 16}, seed, epoch);
    };
    EXPECT_EQ(order(1, 0, 4), order(1, 0, 4));
    EXPECT_NE(order(1, 0, 4), order(1, 1, 4));
    EXPECT_NE(order(1, 0, 4), order(2, 0, 4));
  }
  const auto one = sharded_order(Sharding::kContiguous, 64, {}, {2, 16}, 1, 0);
  Order first, second;
  for (std::size_t j = 0; j < one.size(); j += 2) {
    first.push_back(one[j]);
    second.push_back(one[j + 1] - 32);
  }
  EXPECT_NE(first, second);
}

TEST(Sharding, CountsClassesByRankWithTheirChiSquare) {
  const Strata strata = {0, 0, 0, 0, 2, 2, 2, 2};
  const ShardCounts sorted = count_shards(Order{0, 4, 1, 5, 2, 6, 3, 7}, strata, 2);
  EXPECT_THAT(sorted.samples, ElementsAre(4, 4));
  EXPECT_THAT(sorted.counts, ElementsAre(Order{4, 0, 0}, Order{0, 0, 4}));
  EXPECT_THAT(sorted.chi_square, ElementsAre(4, 4));  // (4 - 2)^2 / 2 twice
  EXPECT_EQ(sorted.degrees_of_freedom, 1);            // nothing is of class 1
  const ShardCounts even = count_shards(Order{0, 1, 2, 3, 4, 5, 6, 7}, strata, 2);
  EXPECT_THAT(even.chi_square, ElementsAre(0, 0));
  const ShardCounts more_ranks = count_shards(Order{0}, Strata{0}, 2);
  EXPECT_THAT(more_ranks.chi_square, ElementsAre(0, 0));
}

TEST(Sharding, NumbersAreInTheirBins) {
  std::vector<double> numbers;
  for (int i = 0; i < 40; ++i) numbers.push_back(-i);
  const Strata tenths = quantile_bins(numbers, 10);
  EXPECT_THAT(classes_of(every_index(40), tenths), ::testing::Each(4));
  EXPECT_THAT(classes_of(every_index(40), quantile_bins(numbers, 3)), ElementsAre(13, 13, 14));
  EXPECT_THAT(classes_of(every_index(40), quantile_bins(numbers, 1)), ElementsAre(40));
  EXPECT_THAT(classes_of(every_index(40), quantile_bins(numbers, 1000)), ::testing::Each(1));
  EXPECT_EQ(tenths.front(), 9);
  EXPECT_EQ(tenths.back(), 0);
  EXPECT_THAT(quantile_bins(std::vector<double>(5, 2.5), 10), ::testing::Each(0));
  EXPECT_THAT(quantile_bins(std::vector<double>{1, 1, 1, 1, 7}, 10), ElementsAre(0, 0, 0, 0, 1));
}

}  // namespace
}  // namespace stormo::data
