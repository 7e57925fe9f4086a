#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stormo/codec/low_rank.h>

namespace stormo::codec {

/// The arithmetic of Adasum, by which gradients of ranks become one, pair by pair over a binary
/// tree. Of a and b, two gradients of one parameter, it makes
///
///   (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b
///
/// so that orthogonal ones are added up, and parallel ones averaged. On level 0 rank 1 meets rank
/// 0, rank 3 rank 2, and so on; on level 1 what ranks 2 and 3 gave meets what 0 and 1 gave. What
/// has no partner goes on as it is. A gradient that is zero changes nothing. One with a number that
/// is not finite makes all numbers of its parameter NaN.
///
/// The numbers are those of a list of gradients, one behind the other, in equal parts. A part is
/// computed by itself, from the terms that ranks have of it; but a scalar product is a sum over all
/// parts, which is needed before the gradients of its level are combined.
///
/// Paper: S. Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021.
///
/// Cost for n numbers on N ranks: 10 n (N-1) / N operations for each part.
class Adasum {
 public:
  Adasum(const std::vector<MatrixShape>& gradients, int ranks);

  std::int64_t numbers() const { return ends_.empty() ? 0 : ends_.back(); }
  /// Of a part; the last ones may have fewer.
  std::int64_t part_numbers() const { return part_numbers_; }
  int levels() const { return levels_; }
  /// Three for each pair of a level and each gradient.
  std::int64_t num_products(int level) const;

  // `terms`: of a part, part_numbers() of each rank, in their order. At last the first ones are the
  // result.

  /// What this part has of the scalar products of a level.
  void multiply(int level, int part, std::span<const float> terms,
                std::span<double> products) const;
  /// `products`: their sums over all parts.
  void combine(int level, int part, std::span<const double> products, std::span<float> terms) const;

 private:
  template <class Body>
  void for_each_pair(int level, int part, const Body& body) const;

  std::vector<std::int64_t> ends_;  // of the gradients, in the list
  int ranks_;
  std::int64_t part_numbers_;
  int levels_ = 0;
};

}  // namespace stormo::codec
