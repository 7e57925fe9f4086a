#pragma once

#include <cstdint>
#include <vector>

namespace stormo::data {

/// Which samples each rank takes in each step. Order = f(seed, epoch) alone; every sample is used
/// exactly once per epoch, on any number of ranks, and a step's global batch does not depend on the
/// number of ranks. The last batch of an epoch may be ragged (smaller than global_batch).
class Sampler {
 public:
  /// samples > 0, global_batch > 0, 0 <= rank < size.
  Sampler(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle,
          int rank, int size);

  std::int64_t steps_per_epoch() const;  ///< rounded up

  /// This rank's part of the global batch of `step` (0 = first step of the run).
  struct Slice {
    std::int64_t epoch = 0;
    std::int64_t global_size = 0;       ///< samples of all ranks in this step
    std::vector<std::int64_t> indices;  ///< of this rank: sizes differ by at most 1, may be empty
  };
  Slice slice(std::int64_t step);

 private:
  std::int64_t samples_;
  std::int64_t global_batch_;
  std::uint64_t seed_;
  bool shuffle_;
  int rank_;
  int size_;
  std::int64_t order_epoch_ = -1;
  std::vector<std::int64_t> order_;
};

}  // namespace stormo::data
