#include <stormo/data/sampler.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/base/rng.h>

namespace stormo::data {
namespace {

using Indices = std::vector<std::int64_t>;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

Sampler::Sampler(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle,
                 int rank, int size)
    : samples_(samples),
      global_batch_(global_batch),
      seed_(seed),
      shuffle_(shuffle),
      rank_(rank),
      size_(size) {
  STORMO_CHECK(samples > 0 && global_batch > 0, "a sampler needs samples and a batch size");
  STORMO_CHECK(0 <= rank && rank < size, "rank must be in [0, size)");
}

void Sampler::balance(std::span<const std::int32_t> lengths) {
  STORMO_CHECK(lengths.empty() || std::ssize(lengths) == samples_, "one length per sample");
  lengths_ = lengths;
}

void Sampler::shard(Sharding sharding, SampleLabels strata) {
  STORMO_CHECK(shuffle_, "shards are shuffled");
  sharding_ = sharding;
  strata_ = std::move(strata);
  order_epoch_ = -1;
}

EpochLayout Sampler::layout(std::int64_t cursor) const {
  return cursor / samples_ == kept_epoch_ ? kept_layout_ : EpochLayout{size_, global_batch_};
}

void Sampler::keep_layout(std::int64_t cursor, const EpochLayout& layout) {
  kept_epoch_ = cursor / samples_;
  kept_layout_ = layout;
  order_epoch_ = -1;
}

ShardCounts Sampler::count_shards(std::int64_t cursor) {
  if (strata_.empty()) return {};
  make_order(cursor / samples_);
  return data::count_shards(order_, strata_, size_);
}

std::int64_t Sampler::steps_per_epoch() const { return divide_up(samples_, global_batch_); }

std::int64_t Sampler::steps_until(std::int64_t cursor, std::int64_t epochs) const {
  const std::int64_t epoch = cursor / samples_;
  if (epoch >= epochs) return 0;
  const std::int64_t rest = samples_ - cursor % samples_;
  return divide_up(rest, global_batch_) + (epochs - epoch - 1) * steps_per_epoch();
}

Sampler::Slice Sampler::slice(std::int64_t cursor) {
  STORMO_CHECK(cursor >= 0, "cursors count from 0");
  Slice slice;
  slice.epoch = cursor / samples_;
  const std::int64_t first = cursor % samples_;
  slice.next = next(cursor);
  slice.global_size = slice.next - cursor;
  if (sharding_ != Sharding::kShuffled) {
    make_order(slice.epoch);
    slice.indices = own_part(first, first + slice.global_size);
    return slice;
  }
  const Indices batch = draw(slice, first);
  if (!lengths_.empty() && size_ > 1) {
    slice.indices = deal(batch);
    return slice;
  }
  const std::int64_t share = slice.global_size / size_;
  const std::int64_t larger = slice.global_size % size_;  // the first ranks take one more
  const auto begin_of = [&](std::int64_t i) { return i * share + std::min(i, larger); };
  slice.indices.assign(batch.begin() + begin_of(rank_), batch.begin() + begin_of(rank_ + shares_));
  return slice;
}

std::int64_t Sampler::next(std::int64_t cursor) const {
  return cursor + std::min(global_batch_, samples_ - cursor % samples_);
}

void Sampler::make_order(std::int64_t epoch) {
  if (order_epoch_ == epoch) return;
  order_epoch_ = epoch;
  if (sharding_ != Sharding::kShuffled) {
    order_ = sharded_order(sharding_, samples_, strata_, layout(epoch * samples_), seed_, epoch);
    return;
  }
  order_.resize(static_cast<std::size_t>(samples_));
  Rng rng(seed_, "order", static_cast<std::uint64_t>(epoch));
  permutation(rng, order_);
}

/// What is for this rank of the samples [begin, end) of the order.
Indices Sampler::own_part(std::int64_t begin, std::int64_t end) const {
  Indices mine;
  const std::int64_t ahead = (rank_ - begin % size_ + size_) % size_;
  for (std::int64_t j = begin + ahead; j < end; j += size_) {
    mine.push_back(order_[static_cast<std::size_t>(j)]);
  }
  return mine;
}

// The global batch, in the order of the epoch.
Indices Sampler::draw(const Slice& slice, std::int64_t first) {
  Indices batch(static_cast<std::size_t>(slice.global_size));
  if (!shuffle_) {
    std::iota(batch.begin(), batch.end(), first);
    return batch;
  }
  make_order(slice.epoch);
  std::copy_n(order_.begin() + first, slice.global_size, batch.begin());
  return batch;
}

Indices Sampler::deal(std::span<const std::int64_t> batch) const {
  const auto length = [this](std::int64_t i) { return lengths_[static_cast<std::size_t>(i)]; };
  Indices sorted(batch.begin(), batch.end());
  std::ranges::stable_sort(sorted, std::greater(), length);
  std::vector<std::int64_t> load(static_cast<std::size_t>(size_));
  std::vector<std::size_t> ranks(load.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  Indices mine;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::size_t turn = i % ranks.size();
    if (turn == 0) std::ranges::stable_sort(ranks, {}, [&](std::size_t r) { return load[r]; });
    load[ranks[turn]] += length(sorted[i]);
    if (ranks[turn] == static_cast<std::size_t>(rank_)) mine.push_back(sorted[i]);
  }
  return mine;
}

}  // namespace stormo::data
