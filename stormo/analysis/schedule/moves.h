#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <stormo/plan/schedule.h>

namespace stormo::analysis {

/// A transfer and its round.
struct Move {
  int round;
  plan::Transfer transfer;
};

/// The moves of each chunk, in order. Chunks are independent of each other, so an analysis needs
/// the state of only one chunk at a time in memory. Internal to analysis/.
class MovesByChunk {
 public:
  /// `s` must be within the ranges that verify checks first.
  explicit MovesByChunk(const plan::Schedule& s);

  std::span<const Move> of(plan::ChunkId chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    return std::span(moves_).subspan(begin_[c], begin_[c + 1] - begin_[c]);
  }

 private:
  std::vector<std::size_t> begin_;
  std::vector<Move> moves_;
};

}  // namespace stormo::analysis
