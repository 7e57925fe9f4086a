#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stormo::protocol {

/// Weights of blocks, from which blocks are drawn: a tree of sums. A draw and a change cost
/// log2(blocks) steps; a sum is always that of its two parts, so errors do not add up.
class BlockWeights {
 public:
  /// All have `weight`, >= 0.
  BlockWeights(std::int64_t blocks, double weight);

  double sum() const { return sums_[1]; }
  double operator[](std::int64_t block) const {
    return sums_[leaves_ + static_cast<std::size_t>(block)];
  }
  void set(std::int64_t block, double weight);
  /// The block at `share` of the sum, from 0 to less than 1; a block of weight 0 only when all are.
  std::int64_t at(double share) const;

 private:
  std::int64_t blocks_;
  std::size_t leaves_;        // a power of two
  std::vector<double> sums_;  // node i has parts 2i and 2i+1; leaves from leaves_ on
};

}  // namespace stormo::protocol
