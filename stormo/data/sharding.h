#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

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
/// Whether it needs the class of each sample.
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
/// Not for kShuffled. `strata`: the class of each sample, not negative; kContiguous needs none. A
/// pure function; only kStrictStratified depends on layout.global_batch.
std::vector<std::int64_t> sharded_order(Sharding sharding, std::int64_t samples,
                                        std::span<const std::int32_t> strata,
                                        const EpochLayout& layout, std::uint64_t seed,
                                        std::int64_t epoch);

/// Classes of the samples of each rank.
struct ShardCounts {
  std::vector<std::vector<std::int64_t>> counts;  ///< by rank and class
  /// Of each rank: the sum over the classes of (count - expected)^2 / expected, where ranks would
  /// expect the shares that the classes have in the whole.
  std::vector<double> chi_square;
  int degrees_of_freedom = 0;  ///< classes that have samples - 1
};
/// Of an order in which sample j is for rank j % ranks.
ShardCounts count_shards(std::span<const std::int64_t> order, std::span<const std::int32_t> strata,
                         int ranks);

/// For targets that are numbers, at least one: the tenth of them, by size, that each is in. Equal
/// numbers are in the same one.
std::vector<std::int32_t> tenths_of(std::span<const double> numbers);

}  // namespace stormo::data
