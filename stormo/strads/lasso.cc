#include <stormo/strads/lasso.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace stormo::strads {
namespace {

double soft_threshold(double z, double lambda) {
  return z > lambda ? z - lambda : z < -lambda ? z + lambda : 0;
}

}  // namespace

double largest_lambda(const SparseColumns& x, std::span<const double> y) {
  double largest = 0;
  for (std::int64_t c = 0; c < x.columns(); ++c) largest = std::max(largest, std::abs(x.dot(c, y)));
  return largest;
}

Result<std::unique_ptr<Lasso>> Lasso::make(const LassoProblem& problem, int worker, int workers) {
  STORMO_ASSIGN_OR_RETURN(const Rows rows, rows_of(worker, workers, problem.x.rows()));
  return std::unique_ptr<Lasso>(new Lasso(
      problem.x.slice(rows), {problem.y.begin() + rows.begin, problem.y.begin() + rows.end},
      problem.x.squared_norms(), problem.lambda));
}

Lasso::Lasso(SparseColumns x, std::vector<double> y, std::vector<double> squares, double lambda)
    : x_(std::move(x)),
      y_(std::move(y)),
      r_(y_),
      squares_(std::move(squares)),
      b_(squares_.size()),
      lambda_(lambda) {}

void Lasso::backward(std::span<const std::int64_t> blocks, std::span<double> part) {
  for (std::size_t i = 0; i < blocks.size(); ++i) part[i] = x_.dot(blocks[i], r_);
}

void Lasso::aggregate(std::span<const std::int64_t> blocks, std::span<const double> sums,
                      std::span<double> values, std::span<double> changes) const {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto j = static_cast<std::size_t>(blocks[i]);
    const double square = squares_[j];
    values[i] = square > 0 ? soft_threshold(sums[i] + square * b_[j], lambda_) / square : 0;
    changes[i] = values[i] - b_[j];
  }
}

void Lasso::set(std::span<const std::int64_t> blocks, std::span<const double> values) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    double& b = b_[static_cast<std::size_t>(blocks[i])];
    const double change = values[i] - b;
    if (change == 0) continue;
    x_.add(blocks[i], -change, r_);
    b = values[i];
  }
}

void Lasso::judged_part(std::span<double> part) const {
  part[0] = part[1] = 0;
  for (std::size_t i = 0; i < r_.size(); ++i) {
    part[0] += r_[i] * r_[i];
    part[1] += r_[i] * y_[i];
  }
  for (std::size_t j = 0; j < b_.size(); ++j) {
    part[j + 2] = x_.dot(static_cast<std::int64_t>(j), r_);
  }
}

Judgement Lasso::judge(std::span<const double> sums) const {
  const double rr = sums[0], ry = sums[1];
  double norm = 0, largest = 0;
  for (std::size_t j = 0; j < b_.size(); ++j) {
    norm += std::abs(b_[j]);
    largest = std::max(largest, std::abs(sums[j + 2]));
  }
  const double objective = rr / 2 + lambda_ * norm;
  // the dual: max of u . y - |u|^2 / 2 where no |x_j . u| is above lambda; here u = scale * r
  const double scale = largest > lambda_ ? lambda_ / largest : 1;
  return {.objective = objective, .gap = objective - (scale * ry - scale * scale * rr / 2)};
}

}  // namespace stormo::strads
