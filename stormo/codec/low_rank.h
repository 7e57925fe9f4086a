#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stormo::codec {

/// A gradient that lies row by row. What is no matrix has one row.
struct MatrixShape {
  std::int64_t rows = 1;
  std::int64_t columns = 0;
  std::int64_t numbers() const { return rows * columns; }
  bool operator==(const MatrixShape&) const = default;
};

/// Whether factors of this rank have less than half of its numbers: then it travels as factors.
bool has_factors(const MatrixShape& gradient, int rank);

/// The arithmetic of sums of matrices M of ranks as products of low rank: P Q^T, where P has `rank`
/// orthonormal columns. P is made of the sum of M Q', with the Q' of the sum before, and Q is the
/// sum of M^T P. So each sum is one step of a power iteration, and P Q^T comes near the best
/// product of that rank, though it is made of two sums of few numbers.
///
/// The numbers are those of a list of gradients, one behind the other. The left factors of all
/// matrices are one message, with the numbers of what does not travel as factors behind them; the
/// right factors are another one. Factors lie column by column, matrix by matrix.
///
/// Paper: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: practical low-rank gradient
/// compression for distributed optimization", NeurIPS 2019.
///
/// Cost: three products of a matrix of n numbers with `rank` columns, 6 n rank operations.
class LowRank {
 public:
  LowRank(const std::vector<MatrixShape>& gradients, int rank);

  std::int64_t numbers() const { return numbers_; }
  std::int64_t left_numbers() const { return left_numbers_ + plain_numbers_; }
  std::int64_t right_numbers() const { return right_numbers_; }

  // What all ranks have alike has the same bits on all processors: what prepare_right(),
  // orthonormalise_left() and deliver() write, but for what was lost.

  /// Makes the right factors of a sum those that the next one begins with: orthonormal, and where a
  /// column is zero, as at first, drawn at random from `seed`.
  void prepare_right(std::span<float> right, std::uint64_t seed) const;
  /// This rank's term of the left message.
  void make_left(std::span<const float> values, std::span<const float> right,
                 std::span<float> left) const;
  /// The sum of left messages. A column that depends on those before it becomes zero.
  void orthonormalise_left(std::span<float> left) const;
  /// This rank's term of the right message.
  void make_right(std::span<const float> values, std::span<const float> left,
                  std::span<float> right) const;
  /// Replaces `values`, which were this rank's, by the sum, and writes to `lost` what it had of
  /// them and did not give: values - P Q^T, with its own Q. A matrix of which the sum is not finite
  /// becomes NaN, what was lost of it stays as it is, and its right factors become zero.
  void deliver(std::span<const float> left, std::span<const float> own_right,
               std::span<float> right, std::span<float> values, std::span<float> lost) const;

 private:
  struct Matrix {
    MatrixShape shape;
    std::int64_t first, left, right;  ///< places of its first numbers: in the list, and of factors
  };
  struct Stretch {
    std::int64_t first, size;
  };
  std::span<float> left_of(const Matrix& m, std::span<float> all) const;
  std::span<float> right_of(const Matrix& m, std::span<float> all) const;

  int rank_;
  std::int64_t numbers_ = 0, left_numbers_ = 0, right_numbers_ = 0, plain_numbers_ = 0;
  std::vector<Matrix> matrices_;
  std::vector<Stretch> plain_;  // numbers that do not travel as factors
};

}  // namespace stormo::codec
