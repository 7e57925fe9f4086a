#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stormo/data/sharding.h>

namespace stormo::data {

/// Chooses the samples of each rank in each step. The order depends only on (seed, epoch). Every
/// sample is used exactly once per epoch, and the global batch of a step does not depend on the
/// number of ranks. The last batch of an epoch may be smaller than global_batch.
///
/// A position in the data is a cursor: the number of samples used before it, over all ranks and
/// epochs. So a run can resume from a cursor with another number of ranks, or another global batch,
/// and still uses every sample exactly once.
///
/// shard() chooses another order, which also depends on the number of ranks.
class Sampler {
 public:
  /// samples > 0, global_batch > 0, 0 <= rank < size.
  Sampler(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle,
          int rank, int size);

  /// From now on distributes each global batch by length, so that ranks get about equal sums of
  /// lengths and equal longest samples. Samples are sorted from the longest to the shortest and
  /// distributed `size` at a time, the longest of these to the rank with the smallest sum. Sums
  /// then differ by no more than the lengths of `size` consecutive samples in that order. `lengths`
  /// has one entry per sample and is borrowed for the sampler's life; empty: no sorting. O(b log b)
  /// per step of b samples.
  void balance(std::span<const std::int32_t> lengths);

  /// From now on this rank has so many of the `size` shares of each global batch, those from number
  /// `rank` on. Not together with balance() or shard().
  void take_shares(int count) { shares_ = count; }

  /// From now on sample j of an epoch is for rank j % size, in the order of sharded_order().
  /// Lengths are then not balanced. `strata`: the labels there. kShuffled changes nothing.
  void shard(Sharding sharding, SampleLabels strata);
  /// What the order of the epoch at `cursor` is made for. With shard() a checkpoint must keep it.
  EpochLayout layout(std::int64_t cursor) const;
  bool begins_epoch(std::int64_t cursor) const { return cursor % samples_ == 0; }
  /// When a run resumes at `cursor`: the rest of this epoch keeps the order that was made for
  /// `layout`, so that every sample of it is used exactly once; its local batches need not have the
  /// classes of the next epochs.
  void keep_layout(std::int64_t cursor, const EpochLayout& layout);
  /// Labels of the samples of each rank, in the epoch at `cursor`; empty without strata.
  ShardCounts count_shards(std::int64_t cursor);

  std::int64_t steps_per_epoch() const;  ///< rounded up, from the start of an epoch
  /// Steps from `cursor` to the end of the first `epochs` epochs; 0 after it.
  std::int64_t steps_until(std::int64_t cursor, std::int64_t epochs) const;

  /// This rank's share of the global batch of one step.
  struct Slice {
    std::int64_t epoch = 0;
    std::int64_t global_size = 0;  ///< samples of all ranks in this step
    std::int64_t next = 0;         ///< cursor of the next step
    /// Of this rank: shares differ by at most one sample, and may be empty.
    std::vector<std::int64_t> indices;
  };
  /// The step that begins at `cursor`, 0 being the start of the run.
  Slice slice(std::int64_t cursor);
  /// Cursor of the step after the one at `cursor`.
  std::int64_t next(std::int64_t cursor) const;

 private:
  void make_order(std::int64_t epoch);
  std::vector<std::int64_t> own_part(std::int64_t begin, std::int64_t end) const;
  std::vector<std::int64_t> draw(const Slice& slice, std::int64_t first);
  std::vector<std::int64_t> deal(std::span<const std::int64_t> batch) const;

  std::int64_t samples_;
  std::int64_t global_batch_;
  std::uint64_t seed_;
  bool shuffle_;
  int rank_;
  int size_;
  int shares_ = 1;
  std::span<const std::int32_t> lengths_;
  Sharding sharding_ = Sharding::kShuffled;
  SampleLabels strata_;
  std::int64_t kept_epoch_ = -1;  // is made for kept_layout_
  EpochLayout kept_layout_;
  std::int64_t order_epoch_ = -1;
  std::vector<std::int64_t> order_;
};

}  // namespace stormo::data
