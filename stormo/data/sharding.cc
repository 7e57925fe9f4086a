#include <stormo/data/sharding.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include <stormo/base/check.h>
#include <stormo/base/rng.h>
#include <stormo/data/iterative_stratification.h>

namespace stormo::data {
namespace {

using Indices = std::vector<std::int64_t>;

std::size_t rows_of(std::size_t samples, std::size_t ranks) { return (samples - 1) / ranks + 1; }

void shuffle(Rng& rng, std::span<std::int64_t> values) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[rng.below(i)]);
}

/// One class after the other, the samples of each in random order.
Indices by_class(const SampleLabels& classes, Rng& rng) {
  Indices sorted(static_cast<std::size_t>(classes.size()));
  permutation(rng, sorted);
  std::ranges::stable_sort(sorted, {}, [&](std::int64_t i) { return classes.of(i).front(); });
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

/// For each rank, its part of samples with several labels.
std::vector<Indices> parts_by_labels(const SampleLabels& labels, std::size_t ranks, Rng& rng) {
  const auto samples = static_cast<std::size_t>(labels.size());
  Indices all(samples), sizes;
  permutation(rng, all);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    sizes.push_back(static_cast<std::int64_t>(samples / ranks + (rank < samples % ranks ? 1 : 0)));
  }
  return iterative_stratification(all, labels, sizes, rng);
}

/// The part of a rank by its batches, each with its share of every label.
Indices batches_by_labels(std::span<const std::int64_t> part, const SampleLabels& labels,
                          std::size_t batch_rows, Rng& rng) {
  Indices sizes, ordered;
  for (std::size_t at = 0; at < part.size(); at += batch_rows) {
    sizes.push_back(static_cast<std::int64_t>(std::min(batch_rows, part.size() - at)));
  }
  for (Indices& batch : iterative_stratification(part, labels, sizes, rng)) {
    shuffle(rng, batch);
    ordered.insert(ordered.end(), batch.begin(), batch.end());
  }
  return ordered;
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

Indices sharded_order(Sharding sharding, std::int64_t samples, const SampleLabels& labels,
                      const EpochLayout& layout, std::uint64_t seed, std::int64_t epoch) {
  const auto ranks = static_cast<std::size_t>(layout.ranks);
  const auto count = static_cast<std::size_t>(samples);
  STORMO_CHECK(sharding != Sharding::kShuffled && fits(sharding, layout), "unsuitable sharding");
  const bool strict = sharding == Sharding::kStrictStratified;
  STORMO_CHECK(!is_stratified(sharding) || labels.size() == samples, "labels of each sample");
  const bool by_labels = is_stratified(sharding) && !labels.one_each();
  Rng rng(seed, "order", static_cast<std::uint64_t>(epoch));
  Indices sorted;
  std::vector<Indices> parts;
  if (by_labels) {
    parts = parts_by_labels(labels, ranks, rng);
  } else if (is_stratified(sharding)) {
    sorted = by_class(labels, rng);
  }
  const std::size_t batch_rows =
      strict ? static_cast<std::size_t>(layout.global_batch) / ranks : rows_of(count, ranks);
  Indices order(count);
  for (std::size_t rank = 0; rank < std::min(ranks, count); ++rank) {
    Rng own(seed, "shards", static_cast<std::uint64_t>(epoch) * ranks + rank);
    const Indices part = by_labels ? batches_by_labels(parts[rank], labels, batch_rows, own)
                         : is_stratified(sharding)
                             ? stratified_part(sorted, rank, ranks, batch_rows, own)
                             : contiguous_part(count, rank, ranks, own);
    for (std::size_t i = 0; i < part.size(); ++i) order[i * ranks + rank] = part[i];
  }
  return order;
}

ShardCounts count_shards(std::span<const std::int64_t> order, const SampleLabels& labels,
                         int ranks) {
  const auto count = static_cast<std::size_t>(labels.count());
  const auto size = static_cast<std::size_t>(ranks);
  ShardCounts out{
      .samples = Indices(size), .counts = std::vector(size, Indices(count)), .chi_square = {}};
  Indices whole(count);
  for (std::size_t j = 0; j < order.size(); ++j) {
    ++out.samples[j % size];
    for (const std::int32_t label : labels.of(order[j])) {
      ++out.counts[j % size][static_cast<std::size_t>(label)];
      ++whole[static_cast<std::size_t>(label)];
    }
  }
  const auto all = std::ssize(order);
  out.degrees_of_freedom = static_cast<int>(std::ranges::count_if(
      whole, [&](std::int64_t n) { return n > 0 && (labels.one_each() || n < all); }));
  if (labels.one_each()) --out.degrees_of_freedom;
  for (std::size_t r = 0; r < size; ++r) {
    double sum = 0;
    for (std::size_t l = 0; l < count && out.samples[r] > 0; ++l) {
      const double share = static_cast<double>(whole[l]) / static_cast<double>(all);
      const double expected = share * static_cast<double>(out.samples[r]);
      const double off = static_cast<double>(out.counts[r][l]) - expected;
      // samples without the label are off by as many
      const double others = labels.one_each() ? 1 : 1 - share;
      if (expected > 0 && others > 0) sum += off * off / (expected * others);
    }
    out.chi_square.push_back(sum);
  }
  return out;
}

std::vector<std::int32_t> quantile_bins(std::span<const double> numbers, std::int64_t bins) {
  std::vector<double> sorted(numbers.begin(), numbers.end());
  std::ranges::sort(sorted);
  const auto count = static_cast<std::size_t>(bins);
  std::vector<double> bounds;  // the least number of each bin but the first
  for (std::size_t q = 1; q < count; ++q) {
    const double bound = sorted[q * sorted.size() / count];
    if (bound > (bounds.empty() ? sorted.front() : bounds.back())) bounds.push_back(bound);
  }
  std::vector<std::int32_t> out;
  for (const double number : numbers) {
    out.push_back(
        static_cast<std::int32_t>(std::ranges::upper_bound(bounds, number) - bounds.begin()));
  }
  return out;
}

}  // namespace stormo::data
