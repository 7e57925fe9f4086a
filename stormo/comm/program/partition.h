#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stormo/comm/program/program.h>
#include <stormo/plan/schedule.h>

namespace stormo::comm {

/// Maps chunks to elements of a rank's memories.
class Partition {
 public:
  /// Divides `count` elements into `chunks` chunks whose sizes differ by at most one element.
  static Partition even(int chunks, std::int64_t count);
  /// Each rank has equally many consecutive chunks, in the order of ranks; those of rank r cover
  /// counts[r] elements.
  static Partition by_rank(int chunks, std::span<const std::int64_t> counts);
  /// For an all_to_all of rank `me`. Blocks of peers' inputs have the same offsets as in the input
  /// of `me`; see MemoryMap for parts of different size.
  static Partition pairs(int chunks, Rank me, std::span<const std::int64_t> in_counts,
                         std::span<const std::int64_t> out_counts);

  plan::Extent of(plan::ChunkId chunk, Area area) const;
  /// First element of rank r's part (by_rank and even: of its chunks).
  std::int64_t part_begin(Rank r, int ranks) const;
  Rank me() const { return me_; }  ///< pairs

 private:
  enum class Kind { kEven, kByRank, kPairs };
  plan::Extent pair(plan::ChunkId chunk, Area area) const;

  Kind kind_ = Kind::kEven;
  int chunks_ = 1;
  std::int64_t count_ = 0;
  Rank me_ = 0;
  std::vector<std::int64_t> begins_;      ///< by rank, and the end
  std::vector<std::int64_t> out_begins_;  ///< kPairs: of `out`
};

}  // namespace stormo::comm
