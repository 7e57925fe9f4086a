#include <stormo/data/iterative_stratification.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/data/sampler.h>

namespace stormo::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Order = std::vector<std::int64_t>;
using Parts = std::vector<Order>;
using Sets = std::vector<std::vector<std::int32_t>>;

/// Label l has a probability of weight^l / 2, so some samples have none.
Sets random_sets(std::int64_t samples, int labels, double weight, std::uint64_t seed) {
  Rng rng(seed, "labels");
  Sets sets(static_cast<std::size_t>(samples));
  for (auto& set : sets) {
    for (int l = 0; l < labels; ++l) {
      if (rng.uniform() < std::pow(weight, l) / 2) set.push_back(l);
    }
  }
  return sets;
}

Order first_indices(std::int64_t samples) {
  Order all(static_cast<std::size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Order together(const Parts& parts) {
  Order all;
  for (const Order& part : parts) all.insert(all.end(), part.begin(), part.end());
  std::ranges::sort(all);
  return all;
}

/// Samples of label `l` in `part`.
double having(const Order& part, const Sets& sets, std::int32_t l) {
  return static_cast<double>(std::ranges::count_if(part, [&](std::int64_t i) {
    return std::ranges::count(sets[static_cast<std::size_t>(i)], l) > 0;
  }));
}

struct Gaps {
  std::vector<double> by_label;  // the largest distance of a part from its share
  double squares = 0;            // of all parts and labels
};
Gaps gaps_of(const Parts& parts, const Sets& sets, int labels) {
  const Order all = together(parts);
  Gaps gaps;
  for (int l = 0; l < labels; ++l) {
    const double share = having(all, sets, l) / static_cast<double>(all.size());
    double worst = 0;
    for (const Order& part : parts) {
      const double gap = having(part, sets, l) - share * static_cast<double>(part.size());
      worst = std::max(worst, std::fabs(gap));
      gaps.squares += gap * gap;
    }
    gaps.by_label.push_back(worst);
  }
  return gaps;
}

/// The label that the fewest samples have, but at least one; -1: there is none.
int rarest(const Sets& sets, int labels) {
  const Order all = first_indices(std::ssize(sets));
  int found = -1;
  for (int l = 0; l < labels; ++l) {
    const double samples = having(all, sets, l);
    if (samples > 0 && (found < 0 || samples < having(all, sets, found))) found = l;
  }
  return found;
}

TEST(SampleLabels, SetsOfOneLabelAreClasses) {
  const SampleLabels classes(Sets{{2}, {0}, {1, 1}});
  EXPECT_TRUE(classes.one_each());
  EXPECT_THAT(classes.all(), ElementsAre(2, 0, 1));
  const SampleLabels several(Sets{{4, 2, 4}, {}, {1}});
  EXPECT_FALSE(several.one_each());
  EXPECT_EQ(several.size(), 3);
  EXPECT_EQ(several.count(), 5);
  EXPECT_THAT(several.of(0), ElementsAre(2, 4));
  EXPECT_THAT(several.of(1), IsEmpty());
  EXPECT_THAT(several.of(2), ElementsAre(1));
  EXPECT_TRUE(SampleLabels().empty());
}

// Subsets of all sizes, also of none, more of them than samples, and labels that few samples have.
TEST(IterativeStratification, FillsItsSubsetsAndSharesTheRarestLabel) {
  double squares = 0, random_squares = 0;
  for (const std::int64_t samples : {1, 2, 7, 30, 101, 256}) {
    for (const int labels : {1, 2, 3, 20}) {
      const auto seed = static_cast<std::uint64_t>(samples * 100 + labels);
      const Sets sets = random_sets(samples, labels, 0.8, seed);
      for (const int subsets : {1, 2, 3, 8, 64}) {
        Rng rng(seed, "test");
        Order sizes(static_cast<std::size_t>(subsets)), order = first_indices(samples);
        for (const auto i : order) ++sizes[static_cast<std::size_t>(i * i % subsets)];
        permutation(rng, order);
        const Parts parts = iterative_stratification(order, SampleLabels(sets), sizes, rng);
        ASSERT_EQ(parts.size(), sizes.size());
        Parts random;  // what the shares are compared with
        for (std::size_t s = 0, at = 0; s < parts.size(); at += parts[s++].size()) {
          EXPECT_EQ(std::ssize(parts[s]), sizes[s]);
          const auto begin = order.begin() + static_cast<std::ptrdiff_t>(at);
          random.emplace_back(begin, begin + std::ssize(parts[s]));
        }
        EXPECT_EQ(together(parts), first_indices(samples));
        const Gaps gaps = gaps_of(parts, sets, labels);
        const int first = rarest(sets, labels);
        EXPECT_TRUE(first < 0 || gaps.by_label[static_cast<std::size_t>(first)] < 1);
        squares += gaps.squares;
        random_squares += gaps_of(random, sets, labels).squares;
      }
    }
  }
  EXPECT_LT(squares, random_squares / 4);
}

// All combinations of 8 labels. When the second label comes, no subset has too many of it yet.
TEST(IterativeStratification, LabelsThatComeEarlyHaveEqualShares) {
  Sets sets;
  for (int i = 0; i < 256; ++i) {
    auto& set = sets.emplace_back();
    for (int l = 0; l < 8; ++l) {
      if ((i >> l & 1) != 0) set.push_back(l);
    }
  }
  Order all(256);
  Rng rng(1, "test");
  permutation(rng, all);
  const Parts parts = iterative_stratification(all, SampleLabels(sets), Order(8, 32), rng);
  const Gaps gaps = gaps_of(parts, sets, 8);
  EXPECT_EQ(gaps.by_label[0], 0);
  EXPECT_EQ(gaps.by_label[1], 0);
}

/// What each rank uses in one epoch, and the worst gaps of its global batches.
struct Epoch {
  Parts parts;
  double batch_squares = 0;
};
Epoch run_epoch(Sharding sharding, const Sets& sets, int labels, int size, std::int64_t batch,
                std::uint64_t seed, std::int64_t epoch) {
  const std::int64_t samples = std::ssize(sets);
  Epoch out{.parts = Parts(static_cast<std::size_t>(size))};
  for (std::int64_t cursor = epoch * samples; cursor < (epoch + 1) * samples;) {
    Parts now;
    for (int r = 0; r < size; ++r) {
      Sampler sampler(samples, batch, seed, /*shuffle=*/true, r, size);
      sampler.shard(sharding, SampleLabels(sets));
      const Sampler::Slice slice = sampler.slice(cursor);
      now.push_back(slice.indices);
      auto& part = out.parts[static_cast<std::size_t>(r)];
      part.insert(part.end(), slice.indices.begin(), slice.indices.end());
    }
    const auto [least, most] = std::ranges::minmax(now, {}, &Order::size);
    EXPECT_LE(most.size() - least.size(), 1u);
    out.batch_squares += gaps_of(now, sets, labels).squares;
    cursor += std::min(batch, (epoch + 1) * samples - cursor);
  }
  return out;
}

TEST(Sharding, SamplesWithSeveralLabelsAreStratified) {
  constexpr int kLabels = 6;
  const Sets sets = random_sets(203, kLabels, 0.7, 5);
  const auto first = static_cast<std::size_t>(rarest(sets, kLabels));
  for (const int size : {1, 2, 3, 7}) {
    const std::int64_t batch = 5 * size;
    const auto epoch_of = [&](Sharding sharding, std::uint64_t seed, std::int64_t epoch) {
      return run_epoch(sharding, sets, kLabels, size, batch, seed, epoch);
    };
    const Epoch random = epoch_of(Sharding::kShuffled, 1, 0);
    for (const Sharding kind : {Sharding::kStratified, Sharding::kStrictStratified}) {
      const Epoch made = epoch_of(kind, 1, 0);
      EXPECT_EQ(together(made.parts), first_indices(203));
      const Gaps gaps = gaps_of(made.parts, sets, kLabels);
      EXPECT_LT(gaps.by_label[first], 1);
      if (size > 1) {
        EXPECT_LT(gaps.squares, gaps_of(random.parts, sets, kLabels).squares / 4);
      }
      EXPECT_EQ(epoch_of(kind, 1, 0).parts, made.parts);
      EXPECT_NE(epoch_of(kind, 2, 0).parts, made.parts);
      EXPECT_NE(epoch_of(kind, 1, 1).parts, made.parts);
    }
    if (size > 1) {
      const Epoch strict = epoch_of(Sharding::kStrictStratified, 1, 0);
      EXPECT_LT(strict.batch_squares, random.batch_squares / 2);
    }
  }
}

TEST(Sharding, LabelsAreCountedByRankWithTheirChiSquare) {
  const SampleLabels labels(Sets{{0, 1}, {0, 1}, {0}, {0}, {0}, {0}, {0}, {0}});
  const ShardCounts counts = count_shards(Order{0, 2, 1, 3, 4, 5, 6, 7}, labels, 2);
  EXPECT_THAT(counts.samples, ElementsAre(4, 4));
  EXPECT_THAT(counts.counts, ElementsAre(Order{4, 2}, Order{4, 0}));
  // of label 1, (2 - 1)^2 / 1 with it and (2 - 3)^2 / 3 without it; all samples have label 0
  EXPECT_THAT(counts.chi_square,
              ElementsAre(::testing::DoubleEq(4. / 3), ::testing::DoubleEq(4. / 3)));
  EXPECT_EQ(counts.degrees_of_freedom, 1);
}

}  // namespace
}  // namespace stormo::data
