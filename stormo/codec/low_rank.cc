#include <stormo/codec/low_rank.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include <stormo/base/rng.h>
#include <stormo/codec/matrix_products.h>

namespace stormo::codec {
namespace {

/// A column of which no more than this share is orthogonal to those before it is rounding.
constexpr double kDependent = 1e-6;

template <class Float>
std::span<Float> part(std::span<Float> all, std::int64_t first, std::int64_t size) {
  return all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size));
}

/// In one order of additions, whatever the processor.
double dot(std::span<const float> a, std::span<const float> b) {
  std::array<double, 4> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= a.size(); i += sums.size()) {
    for (std::size_t k = 0; k < sums.size(); ++k) {
      sums[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
    }
  }
  for (; i < a.size(); ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void divide(std::span<float> values, double by) {
  for (float& v : values) v = static_cast<float>(v / by);
}

void subtract(std::span<float> values, double factor, std::span<const float> from) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(values[i] - factor * from[i]);
  }
}

/// Gram-Schmidt of columns of `length` numbers. What depends on columns before it becomes zero;
/// with a number that is not finite all become NaN.
void orthonormalise(std::span<float> columns, std::size_t length) {
  for (std::size_t first = 0; first < columns.size(); first += length) {
    const std::span<float> column = columns.subspan(first, length);
    double norm = std::sqrt(dot(column, column));
    if (!std::isfinite(norm)) {
      std::ranges::fill(columns, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    if (norm > 0) divide(column, norm);
    for (int turn = 0; turn < 2 && norm > 0; ++turn) {  // the second removes what rounding left
      for (std::size_t before = 0; before < first; before += length) {
        const std::span<const float> other = columns.subspan(before, length);
        subtract(column, dot(column, other), other);
      }
      norm = std::sqrt(dot(column, column));
      if (norm <= kDependent) norm = 0;
      if (norm > 0) divide(column, norm);
    }
    if (norm == 0) std::ranges::fill(column, 0.0f);
  }
}

/// From -1 to 1.
void draw(std::span<float> column, std::uint64_t seed, std::uint32_t number) {
  std::array<std::uint32_t, 4> drawn{};
  for (std::size_t i = 0; i < column.size(); ++i) {
    if (i % drawn.size() == 0) {
      drawn =
          philox4x32({static_cast<std::uint32_t>(i), number},
                     {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    }
    column[i] = static_cast<float>(static_cast<std::int32_t>(drawn[i % drawn.size()])) * 0x1p-31f;
  }
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float v) { return std::isfinite(v); });
}

}  // namespace

bool has_factors(const MatrixShape& gradient, int rank) {
  // without a product or a sum, which may be too large
  return gradient.columns <= (gradient.numbers() - 1) / (std::int64_t{2} * rank) - gradient.rows;
}

LowRank::LowRank(const std::vector<MatrixShape>& gradients, int rank) : rank_(rank) {
  for (const MatrixShape& shape : gradients) {
    if (stormo::codec::has_factors(shape, rank)) {
      matrices_.push_back({shape, numbers_, left_numbers_, right_numbers_});
      left_numbers_ += shape.rows * rank;
      right_numbers_ += shape.columns * rank;
    } else {
      plain_.push_back({numbers_, shape.numbers()});
      plain_numbers_ += shape.numbers();
    }
    numbers_ += shape.numbers();
  }
}

std::span<float> LowRank::left_of(const Matrix& m, std::span<float> all) const {
  return part(all, m.left, m.shape.rows * rank_);
}

std::span<float> LowRank::right_of(const Matrix& m, std::span<float> all) const {
  return part(all, m.right, m.shape.columns * rank_);
}

void LowRank::prepare_right(std::span<float> right, std::uint64_t seed) const {
  std::uint32_t number = 0;  // of a column
  for (const Matrix& m : matrices_) {
    const std::span<float> columns = right_of(m, right);
    const auto length = static_cast<std::size_t>(m.shape.columns);
    orthonormalise(columns, length);
    for (std::size_t first = 0; first < columns.size(); first += length, ++number) {
      const std::span<float> column = columns.subspan(first, length);
      const bool zero = std::ranges::all_of(column, [](float v) { return v == 0; });
      if (zero) draw(column, seed, number);
    }
  }
}

void LowRank::make_left(std::span<const float> values, std::span<const float> right,
                        std::span<float> left) const {
  for (const Matrix& m : matrices_) {
    multiply(&values[static_cast<std::size_t>(m.first)], m.shape, rank_,
             &right[static_cast<std::size_t>(m.right)], &left[static_cast<std::size_t>(m.left)]);
  }
  std::int64_t to = left_numbers_;
  for (const Stretch& s : plain_) {
    std::ranges::copy(part(values, s.first, s.size), part(left, to, s.size).begin());
    to += s.size;
  }
}

void LowRank::orthonormalise_left(std::span<float> left) const {
  for (const Matrix& m : matrices_) {
    orthonormalise(left_of(m, left), static_cast<std::size_t>(m.shape.rows));
  }
}

void LowRank::make_right(std::span<const float> values, std::span<const float> left,
                         std::span<float> right) const {
  for (const Matrix& m : matrices_) {
    multiply_transposed(&values[static_cast<std::size_t>(m.first)], m.shape, rank_,
                        &left[static_cast<std::size_t>(m.left)],
                        &right[static_cast<std::size_t>(m.right)]);
  }
}

void LowRank::deliver(std::span<const float> left, std::span<const float> own_right,
                      std::span<float> right, std::span<float> values,
                      std::span<float> lost) const {
  for (const Matrix& m : matrices_) {
    const auto first = static_cast<std::size_t>(m.first);
    const std::span<float> sum = right_of(m, right);
    if (all_finite(sum)) {
      replace_by_product(&values[first], m.shape, rank_, &left[static_cast<std::size_t>(m.left)],
                         &own_right[static_cast<std::size_t>(m.right)], sum.data(), &lost[first]);
    } else {
      std::ranges::fill(part(values, m.first, m.shape.numbers()),
                        std::numeric_limits<float>::quiet_NaN());
      std::ranges::fill(sum, 0.0f);
    }
  }
  std::int64_t from = left_numbers_;
  for (const Stretch& s : plain_) {
    std::ranges::copy(part(left, from, s.size), part(values, s.first, s.size).begin());
    from += s.size;
  }
}

}  // namespace stormo::codec
