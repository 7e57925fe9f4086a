#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/strads/block_program.h>
#include <stormo/strads/sparse_columns.h>

namespace stormo::strads {

/// min over b of |y - X b|^2 / 2 + lambda |b|_1. There is no intercept, and columns stay as they
/// are: centre and scale them before if that is meant.
struct LassoProblem {
  SparseColumns x;
  std::vector<double> y;
  double lambda = 0;
};

/// Memory for an element of X that is not 0, where X is read or made: read, of all columns, and in
/// the columns of a worker's rows.
inline constexpr double kBytesOfElement = 48;

/// Where all coefficients become 0: the largest |x_j . y|.
double largest_lambda(const SparseColumns& x, std::span<const double> y);

/// Lasso by coordinate descent. A block is a coefficient. A worker has rows of X and y; its part of
/// a coefficient is x_j . r over its rows, where r = y - X b. Aggregated: b_j = S(x_j . r + |x_j|^2
/// b_j, lambda) / |x_j|^2 with the soft threshold S (Friedman, Hastie, Hoefling, Tibshirani,
/// "Pathwise coordinate optimization", 2007). Cost of an update: the nonzeros of a column, once for
/// the part and once more if the coefficient changes.
class Lasso final : public BlockProgram {
 public:
  /// kInvalidArgument when a worker has no row.
  static Result<std::unique_ptr<Lasso>> make(const LassoProblem& problem, int worker, int workers);

  const std::vector<double>& coefficients() const { return b_; }

  plan::ModelShape variables() const override {
    return {{{.name = "lasso", .parameters = {{"b", blocks(), DType::kFloat64}}, .borrowed = {}}}};
  }
  std::int64_t blocks() const override { return x_.columns(); }
  std::size_t part_size(std::span<const std::int64_t> blocks) const override {
    return blocks.size();
  }
  std::size_t value_size(std::span<const std::int64_t> blocks) const override {
    return blocks.size();
  }
  void backward(std::span<const std::int64_t> blocks, std::span<double> part) override;
  void aggregate(std::span<const std::int64_t> blocks, std::span<const double> sums,
                 std::span<double> values, std::span<double> changes) const override;
  void set(std::span<const std::int64_t> blocks, std::span<const double> values) override;

  /// Its gap is that of a dual point, r scaled until it is feasible; 0 in the minimum alone. Cost:
  /// all nonzeros once.
  std::size_t judged_size() const override { return b_.size() + 2; }
  void judged_part(std::span<double> part) const override;
  Judgement judge(std::span<const double> sums) const override;
  BlockValues values() const override { return {.rows = {}, .common = b_}; }

 private:
  Lasso(SparseColumns x, std::vector<double> y, std::vector<double> squares, double lambda);
  SparseColumns x_;              // of this worker's rows
  std::vector<double> y_, r_;    // of this worker's rows
  std::vector<double> squares_;  // by column, over all rows
  std::vector<double> b_;
  double lambda_;
};

}  // namespace stormo::strads
