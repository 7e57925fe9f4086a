#include <stormo/strads/factorisation.h>

#include <cmath>
#include <utility>

#include <stormo/base/rng.h>
#include <stormo/strads/sparse_columns.h>

namespace stormo::strads {
namespace {

bool is_w(std::int64_t block) { return block % 2 == 0; }
std::size_t factor_of(std::int64_t block) { return static_cast<std::size_t>(block / 2); }

double squared_distance(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

/// Numerator and denominator of a new value: sum of r' x and of x^2, r' without this factor.
struct Fraction {
  double above = 0, below = 0;
  void add(double residual, double mine, double other) {
    above += (residual + mine * other) * other;
    below += other * other;
  }
};

std::vector<double> row_major(const std::vector<std::vector<double>>& columns) {
  std::vector<double> out;
  for (std::size_t i = 0; i < columns[0].size(); ++i) {
    for (const auto& column : columns) out.push_back(column[i]);
  }
  return out;
}

}  // namespace

double bytes_of_factors(int rank, std::int64_t rows, std::int64_t columns, int workers) {
  const double numbers = 3 * static_cast<double>(rows) + 2 * static_cast<double>(columns) * workers;
  return static_cast<double>(sizeof(double)) * rank * numbers;
}

Result<std::unique_ptr<Factorisation>> Factorisation::make(const FactorisationProblem& problem,
                                                           int worker, int workers) {
  STORMO_ASSIGN_OR_RETURN(const Rows rows, rows_of(worker, workers, problem.ratings.rows));
  return std::unique_ptr<Factorisation>(
      new Factorisation(problem, rows.begin, rows.end - rows.begin));
}

Factorisation::Factorisation(const FactorisationProblem& problem, std::int64_t first_row,
                             std::int64_t rows)
    : rank_(problem.rank), lambda_(problem.lambda) {
  for (Rating known : problem.ratings.known) {
    if (known.row < first_row || known.row >= first_row + rows) continue;
    known.row -= static_cast<std::int32_t>(first_row);
    known_.push_back(known);
    residual_.push_back(known.value);  // W is 0
  }
  const auto rank = static_cast<std::size_t>(rank_);
  w_.assign(rank, std::vector<double>(static_cast<std::size_t>(rows)));
  h_.assign(rank, std::vector<double>(static_cast<std::size_t>(problem.ratings.columns)));
  Rng rng(problem.seed, "factorisation");
  for (auto& column : h_) {
    for (double& value : column) value = (2 * rng.uniform() - 1) / std::sqrt(problem.rank);
  }
  new_w_.resize(rank);
}

std::vector<std::vector<std::int64_t>> Factorisation::rotation(int rank, int inner) {
  std::vector<std::vector<std::int64_t>> rounds;
  for (std::int64_t k = 0; k < rank; ++k) {
    for (int i = 0; i < inner; ++i) {
      rounds.push_back({2 * k});
      rounds.push_back({2 * k + 1});
    }
  }
  return rounds;
}

std::vector<double> Factorisation::w() const { return row_major(w_); }
std::vector<double> Factorisation::h() const { return row_major(h_); }

std::size_t Factorisation::part_size(std::span<const std::int64_t> blocks) const {
  std::size_t size = 0;
  for (const std::int64_t block : blocks) size += is_w(block) ? 1 : 2 * h_[0].size();
  return size;
}

std::size_t Factorisation::value_size(std::span<const std::int64_t> blocks) const {
  std::size_t size = 0;
  for (const std::int64_t block : blocks) size += is_w(block) ? 0 : h_[0].size();
  return size;
}

void Factorisation::backward(std::span<const std::int64_t> blocks, std::span<double> part) {
  for (const std::int64_t block : blocks) {
    const std::size_t size = part_size({&block, 1});
    if (is_w(block)) {
      update_w(factor_of(block), part.first(size));
    } else {
      update_h(factor_of(block), part.first(size));
    }
    part = part.subspan(size);
  }
}

void Factorisation::update_w(std::size_t k, std::span<double> part) {
  const std::vector<double>& w = w_[k];
  std::vector<double>& next = new_w_[k];
  next.resize(w.size());
  std::vector<Fraction> fractions(w.size());
  for (std::size_t e = 0; e < known_.size(); ++e) {
    const auto i = static_cast<std::size_t>(known_[e].row);
    fractions[i].add(residual_[e], w[i], h_[k][static_cast<std::size_t>(known_[e].column)]);
  }
  for (std::size_t i = 0; i < w.size(); ++i) {
    next[i] = fractions[i].above / (lambda_ + fractions[i].below);
  }
  part[0] = squared_distance(next, w);
}

void Factorisation::update_h(std::size_t k, std::span<double> part) const {
  const std::vector<double>& h = h_[k];
  std::vector<Fraction> fractions(h.size());
  for (std::size_t e = 0; e < known_.size(); ++e) {
    const auto j = static_cast<std::size_t>(known_[e].column);
    fractions[j].add(residual_[e], h[j], w_[k][static_cast<std::size_t>(known_[e].row)]);
  }
  for (std::size_t j = 0; j < h.size(); ++j) {
    part[2 * j] = fractions[j].above;
    part[2 * j + 1] = fractions[j].below;
  }
}

void Factorisation::aggregate(std::span<const std::int64_t> blocks, std::span<const double> sums,
                              std::span<double> values, std::span<double> changes) const {
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    double squared_change = sums[0];
    if (!is_w(blocks[b])) {
      const std::vector<double>& h = h_[factor_of(blocks[b])];
      for (std::size_t j = 0; j < h.size(); ++j) {
        values[j] = sums[2 * j] / (lambda_ + sums[2 * j + 1]);
      }
      squared_change = squared_distance(values.first(h.size()), h);
    }
    changes[b] = std::sqrt(squared_change);
    sums = sums.subspan(part_size({&blocks[b], 1}));
    values = values.subspan(value_size({&blocks[b], 1}));
  }
}

void Factorisation::set(std::span<const std::int64_t> blocks, std::span<const double> values) {
  for (const std::int64_t block : blocks) {
    if (is_w(block)) {
      set_w(factor_of(block));
    } else {
      set_h(factor_of(block), values.first(h_[0].size()));
      values = values.subspan(h_[0].size());
    }
  }
}

void Factorisation::set_w(std::size_t k) {
  std::vector<double>& w = w_[k];
  for (std::size_t e = 0; e < known_.size(); ++e) {
    const auto i = static_cast<std::size_t>(known_[e].row);
    residual_[e] -= (new_w_[k][i] - w[i]) * h_[k][static_cast<std::size_t>(known_[e].column)];
  }
  w = std::exchange(new_w_[k], {});
}

void Factorisation::set_h(std::size_t k, std::span<const double> values) {
  std::vector<double>& h = h_[k];
  for (std::size_t e = 0; e < known_.size(); ++e) {
    const auto j = static_cast<std::size_t>(known_[e].column);
    residual_[e] -= (values[j] - h[j]) * w_[k][static_cast<std::size_t>(known_[e].row)];
  }
  h.assign(values.begin(), values.end());
}

void Factorisation::judged_part(std::span<double> part) const {
  part[0] = part[1] = 0;
  for (const double r : residual_) part[0] += r * r;
  for (const auto& column : w_) {
    for (const double value : column) part[1] += value * value;
  }
}

Judgement Factorisation::judge(std::span<const double> sums) const {
  double h = 0;
  for (const auto& column : h_) {
    for (const double value : column) h += value * value;
  }
  return {.objective = sums[0] / 2 + lambda_ * (sums[1] + h) / 2};
}

}  // namespace stormo::strads
