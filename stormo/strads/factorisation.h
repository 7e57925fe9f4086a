#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/strads/block_program.h>
#include <stormo/strads/ratings.h>

namespace stormo::strads {

/// min over W, H of the sum over known elements of (a_ij - w_i . h_j)^2 / 2
/// + lambda (|W|^2 + |H|^2) / 2.
struct FactorisationProblem {
  Ratings ratings;
  int rank = 8;  ///< factors: columns of W and of H
  double lambda = 0.05;
  std::uint64_t seed = 1;  ///< of the first H; W is 0 first
};

/// Memory for W, for the H of so many workers in a process, and for what is written of both.
double bytes_of_factors(int rank, std::int64_t rows, std::int64_t columns, int workers);

/// Matrix factorisation by coordinate descent, factor by factor (CCD++: Yu, Hsieh, Si, Dhillon,
/// "Scalable coordinate descent approaches to parallel matrix factorization for recommender
/// systems", ICDM 2012), as STRADS does. Block 2k is column k of W, block 2k + 1 column k of H. A
/// worker has rows of the matrix and of W; H is everywhere. So W's columns need no data of others,
/// and of H's columns two numbers for each of its rows are added up. Blocks of one round are
/// computed from the values before it, whatever they are. Cost of a block: all known elements of
/// the worker, twice.
class Factorisation final : public BlockProgram {
 public:
  /// kInvalidArgument when a worker has no row.
  static Result<std::unique_ptr<Factorisation>> make(const FactorisationProblem& problem,
                                                     int worker, int workers);
  /// Its dependencies are regular: factor after factor, and `inner` times W's and H's column of
  /// each.
  static std::vector<std::vector<std::int64_t>> rotation(int rank, int inner);

  /// Of this worker's rows, [rows, rank]; and [columns, rank].
  std::vector<double> w() const;
  std::vector<double> h() const;

  /// H; a row of W is of whoever has the row of the matrix.
  plan::ModelShape variables() const override {
    return {{{.name = "factors",
              .parameters = {{"h", std::ssize(h()), DType::kFloat64}},
              .borrowed = {}}}};
  }
  std::int64_t blocks() const override { return 2 * rank_; }
  std::size_t part_size(std::span<const std::int64_t> blocks) const override;
  std::size_t value_size(std::span<const std::int64_t> blocks) const override;
  void backward(std::span<const std::int64_t> blocks, std::span<double> part) override;
  void aggregate(std::span<const std::int64_t> blocks, std::span<const double> sums,
                 std::span<double> values, std::span<double> changes) const override;
  void set(std::span<const std::int64_t> blocks, std::span<const double> values) override;

  std::size_t judged_size() const override { return 2; }
  void judged_part(std::span<double> part) const override;
  Judgement judge(std::span<const double> sums) const override;
  BlockValues values() const override { return {.rows = w(), .common = h()}; }

 private:
  Factorisation(const FactorisationProblem& problem, std::int64_t first_row, std::int64_t rows);
  void update_w(std::size_t k, std::span<double> part);
  void update_h(std::size_t k, std::span<double> part) const;
  void set_w(std::size_t k);
  void set_h(std::size_t k, std::span<const double> values);

  std::int64_t rank_;
  double lambda_;
  std::vector<Rating> known_;               // of this worker's rows, counted from 0
  std::vector<double> residual_;            // of each, a - w . h
  std::vector<std::vector<double>> w_, h_;  // by factor
  std::vector<std::vector<double>> new_w_;  // by factor: of columns of W in flight, else empty
};

}  // namespace stormo::strads
