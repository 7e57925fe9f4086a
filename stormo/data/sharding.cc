#include <stormo/data/sharding.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include <stormo/base/check.h>
#include <stormo/base/rng.h>

namespace stormo::data {
namespace {

using Indices = std::vector<std::int64_t>;

constexpr std::size_t kTenths = 10;

std::size_t rows_of(std::size_t samples, std::size_t ranks) { return (samples - 1) / ranks + 1; }

void shuffle(Rng& rng, std::span<std::int64_t> values) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[rng.below(i)]);
}

/// One class after the other, the samples of each in random order.
Indices by_class(std::span<const std::int32_t> strata, std::uint64_t seed, std::int64_t epoch) {
  Indices sorted(strata.size());
  Rng rng(seed, "order", static_cast<std::uint64_t>(epoch));
  permutation(rng, sorted);
  std::ranges::stable_sort(sorted, {},
                           [&](std::int64_t i) { return strata[static_cast<std::size_t>(i)]; });
  return sorted;
}

/// The part of the data that a rank has in file order, shuffled.
Indices contiguous_part(std::size_t samples, std::size_t rank, std::size_t ranks, Rng& rng) {
  Indices part(samples / ranks + (rank < samples % ranks ? 1 : 0));
  const std::size_t begin = rank * (samples / ranks) + std::min(rank, samples % ranks);
  std::iota(part.begin(), part.end(), static_cast<std::int64_t>(begin));
  shuffle(rng, part);
  return part;
}

// The samples by class are written in rows of one for each rank; a rank has a column. Whole rows,
// whichever they are, give all ranks equally many of a class, except for the row where the class
// begins, which gives one to the last ranks, and the row where it ends, which gives one to the
// first ranks. So the counts of two ranks differ by at most 1, and that of each rank differs from
// their mean by less than 1.
//
// Batches of `batch_rows` rows: the last one gets rows at equal distances, the same of all ranks.
// The others get the rest of the column in turn, as cards are dealt, each rank in turns of its own.
// A class is consecutive there, so u or u + 1 samples of a rank give each batch floor(u / batches)
// or one more, on all ranks. Stratified epochs are the case of one batch.
Indices stratified_part(std::span<const std::int64_t> sorted, std::size_t rank, std::size_t ranks,
                        std::size_t batch_rows, Rng& rng) {
  const std::size_t rows = rows_of(sorted.size(), ranks);
  const std::size_t before_last = (rows - 1) / batch_rows;
  const std::size_t last_rows = rows - before_last * batch_rows;
  Indices turns(before_last);
  permutation(rng, turns);
  std::vector<Indices> batches(before_last + 1);
  std::size_t dealt = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    // the last row, which may be incomplete, is one of them
    const bool is_last = (row + 1) * last_rows / rows > row * last_rows / rows;
    const std::size_t batch =
        is_last ? before_last : static_cast<std::size_t>(turns[dealt++ % before_last]);
    const std::size_t at = row * ranks + rank;
    if (at < sorted.size()) batches[batch].push_back(sorted[at]);
  }
  Indices part;
  for (Indices& batch : batches) {
    shuffle(rng, batch);
    part.insert(part.end(), batch.begin(), batch.end());
  }
  return part;
}

}  // namespace

const std::vector<std::string>& sharding_names() {
  static const std::vector<std::string> names = {"shuffled", "contiguous", "stratified",
                                                 "strict_stratified"};
  return names;
}

const std::string& name_of(Sharding sharding) {
  return sharding_names()[static_cast<std::size_t>(sharding)];
}

Indices sharded_order(Sharding sharding, std::int64_t samples, std::span<const std::int32_t> strata,
                      const EpochLayout& layout, std::uint64_t seed, std::int64_t epoch) {
  const auto ranks = static_cast<std::size_t>(layout.ranks);
  const auto count = static_cast<std::size_t>(samples);
  STORMO_CHECK(sharding != Sharding::kShuffled && fits(sharding, layout), "unsuitable sharding");
  const bool strict = sharding == Sharding::kStrictStratified;
  Indices sorted;
  if (is_stratified(sharding)) {
    STORMO_CHECK(std::ssize(strata) == samples, "one class per sample");
    sorted = by_class(strata, seed, epoch);
  }
  const std::size_t batch_rows =
      strict ? static_cast<std::size_t>(layout.global_batch) / ranks : rows_of(count, ranks);
  Indices order(count);
  for (std::size_t rank = 0; rank < std::min(ranks, count); ++rank) {
    Rng rng(seed, "shards", static_cast<std::uint64_t>(epoch) * ranks + rank);
    const Indices part = is_stratified(sharding)
                             ? stratified_part(sorted, rank, ranks, batch_rows, rng)
                             : contiguous_part(count, rank, ranks, rng);
    for (std::size_t i = 0; i < part.size(); ++i) order[i * ranks + rank] = part[i];
  }
  return order;
}

ShardCounts count_shards(std::span<const std::int64_t> order, std::span<const std::int32_t> strata,
                         int ranks) {
  const std::size_t classes = static_cast<std::size_t>(std::ranges::max(strata)) + 1;
  ShardCounts out{.counts = std::vector(static_cast<std::size_t>(ranks), Indices(classes)),
                  .chi_square = {}};
  Indices whole(classes), sizes(out.counts.size());
  for (std::size_t j = 0; j < order.size(); ++j) {
    const auto c = static_cast<std::size_t>(strata[static_cast<std::size_t>(order[j])]);
    const std::size_t rank = j % out.counts.size();
    ++out.counts[rank][c];
    ++whole[c];
    ++sizes[rank];
  }
  const auto present = std::ranges::count_if(whole, [](std::int64_t n) { return n > 0; });
  out.degrees_of_freedom = static_cast<int>(present) - 1;
  for (std::size_t r = 0; r < out.counts.size(); ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < classes && sizes[r] > 0; ++c) {
      const double expected = static_cast<double>(whole[c]) * static_cast<double>(sizes[r]) /
                              static_cast<double>(order.size());
      const double off = static_cast<double>(out.counts[r][c]) - expected;
      if (expected > 0) sum += off * off / expected;
    }
    out.chi_square.push_back(sum);
  }
  return out;
}

std::vector<std::int32_t> tenths_of(std::span<const double> numbers) {
  std::vector<double> sorted(numbers.begin(), numbers.end());
  std::ranges::sort(sorted);
  std::vector<double> bounds;  // the least number of each tenth but the first
  for (std::size_t q = 1; q < kTenths; ++q) {
    const double bound = sorted[q * sorted.size() / kTenths];
    if (bound > (bounds.empty() ? sorted.front() : bounds.back())) bounds.push_back(bound);
  }
  std::vector<std::int32_t> tenths;
  for (const double number : numbers) {
    tenths.push_back(
        static_cast<std::int32_t>(std::ranges::upper_bound(bounds, number) - bounds.begin()));
  }
  return tenths;
}

}  // namespace stormo::data
