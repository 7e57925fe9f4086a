#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/data/sample_labels.h>

namespace stormo::data {

/// How the samples of an epoch are distributed over the ranks.
enum class Sharding : std::uint8_t {
  kShuffled,          ///< equal parts of random global batches
  kContiguous,        ///< equal parts of the data in file order, each rank the same in every epoch
  kStratified,        ///< n samples of a class are n / ranks on each rank, to the next whole number
  kStrictStratified,  ///< the same of every epoch, and of every global batch
};
/// Names as in recipes, in the order of the enumerators.
const std::vector<std::string>& sharding_names();
const std::string& name_of(Sharding sharding);
/// Whether it needs the labels of each sample.
constexpr bool is_stratified(Sharding sharding) {
  return sharding == Sharding::kStratified || sharding == Sharding::kStrictStratified;
}

/// What the order of an epoch is made for, unless it is kShuffled.
struct EpochLayout {
  int ranks = 1;
  std::int64_t global_batch = 1;
  bool operator==(const EpochLayout&) const = default;
};

/// Whether a global batch can be distributed: for kStrictStratified it must be a multiple of ranks.
constexpr bool fits(Sharding sharding, const EpochLayout& layout) {
  return layout.ranks > 0 && layout.global_batch > 0 &&
         (sharding != Sharding::kStrictStratified || layout.global_batch % layout.ranks == 0);
}

/// All samples of an epoch in the order of their use: sample j of it is for rank j % layout.ranks.
/// Not for kShuffled; kContiguous needs no `labels`. A pure function; only kStrictStratified
/// depends on layout.global_batch.
///
/// Samples that do not have one label each are distributed by iterative_stratification(): over the
/// ranks and, for kStrictStratified, those of each rank over its local batches.
std::vector<std::int64_t> sharded_order(Sharding sharding, std::int64_t samples,
                                        const SampleLabels& labels, const EpochLayout& layout,
                                        std::uint64_t seed, std::int64_t epoch);

/// Labels of the samples of each rank.
struct ShardCounts {
  std::vector<std::int64_t> samples;              ///< by rank
  std::vector<std::vector<std::int64_t>> counts;  ///< by rank and label
  /// Of each rank: the sum of (count - expected)^2 / expected, where ranks would expect the shares
  /// of the whole; over the classes or, where samples do not have one label each, over the samples
  /// with and without each label.
  std::vector<double> chi_square;
  /// Classes that have samples - 1, or labels that some but not all samples have.
  int degrees_of_freedom = 0;
};
/// Of an order in which sample j is for rank j % ranks.
ShardCounts count_shards(std::span<const std::int64_t> order, const SampleLabels& labels,
                         int ranks);

/// For targets that are numbers, at least one: which of `bins` ranges with equally many of them
/// each is in. Equal numbers are in the same one.
std::vector<std::int32_t> quantile_bins(std::span<const double> numbers, std::int64_t bins);

}  // namespace stormo::data
