#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/protocol/strads/conflicts.h>

namespace stormo::strads {

/// A range of rows.
struct Rows {
  std::int64_t begin = 0, end = 0;
};
/// Those of a worker, when all have equally many, or one more. kInvalidArgument when there are
/// fewer rows than workers.
Result<Rows> rows_of(int worker, int workers, std::int64_t rows);

/// A matrix by columns, of which only the nonzero elements are held, with rows in ascending order.
class SparseColumns {
 public:
  explicit SparseColumns(std::int64_t rows) : rows_(rows) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return std::ssize(begins_) - 1; }
  std::int64_t nonzeros() const { return std::ssize(entries_); }

  struct Entry {
    std::int32_t row = 0;
    double value = 0;
  };
  void add_column(std::span<const Entry> entries);
  std::span<const Entry> column(std::int64_t c) const {
    const auto at = static_cast<std::size_t>(c);
    return {entries_.data() + begins_[at], static_cast<std::size_t>(begins_[at + 1] - begins_[at])};
  }
  double dot(std::int64_t c, std::span<const double> x) const {
    double sum = 0;
    for (const Entry& e : column(c)) sum += e.value * x[static_cast<std::size_t>(e.row)];
    return sum;
  }
  void add(std::int64_t c, double factor, std::span<double> x) const {
    for (const Entry& e : column(c)) x[static_cast<std::size_t>(e.row)] += factor * e.value;
  }
  /// The squared norm of each column.
  std::vector<double> squared_norms() const;
  /// Only these rows, counted from 0.
  SparseColumns slice(Rows rows) const;

 private:
  std::int64_t rows_;
  std::vector<std::int64_t> begins_{0};
  std::vector<Entry> entries_;
};

/// The pairs of columns with |x_a . x_b| >= threshold |x_a| |x_b|: of columns whose mean is 0, the
/// absolute correlation. A column whose squares add up to 0 is in no pair. `threshold` is above 0.
/// kExhausted as soon as the pairs need more than `memory` bytes. Cost: for each nonzero element
/// the number of nonzeros of its row, halved; memory: 16 bytes for each nonzero element and, at the
/// peak, for each pair.
Result<protocol::Conflicts> correlated_columns(
    const SparseColumns& x, double threshold,
    std::uint64_t memory = std::numeric_limits<std::uint64_t>::max());

}  // namespace stormo::strads
