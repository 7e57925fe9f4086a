#include <stormo/strads/sparse_columns.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace stormo::strads {

Result<Rows> rows_of(int worker, int workers, std::int64_t rows) {
  if (rows < workers) {
    return invalid_argument(
        fmt::format("no rows are left for a rank: there are {} for {} ranks", rows, workers));
  }
  return Rows{rows * worker / workers, rows * (worker + 1) / workers};
}

void SparseColumns::add_column(std::span<const Entry> entries) {
  entries_.insert(entries_.end(), entries.begin(), entries.end());
  begins_.push_back(std::ssize(entries_));
}

std::vector<double> SparseColumns::squared_norms() const {
  std::vector<double> norms(static_cast<std::size_t>(columns()));
  for (std::int64_t c = 0; c < columns(); ++c) {
    for (const Entry& e : column(c)) norms[static_cast<std::size_t>(c)] += e.value * e.value;
  }
  return norms;
}

SparseColumns SparseColumns::slice(Rows rows) const {
  SparseColumns out(rows.end - rows.begin);
  std::vector<Entry> kept;
  for (std::int64_t c = 0; c < columns(); ++c) {
    kept.clear();
    for (const Entry& e : column(c)) {
      if (e.row < rows.begin || e.row >= rows.end) continue;
      kept.push_back({static_cast<std::int32_t>(e.row - rows.begin), e.value});
    }
    out.add_column(kept);
  }
  return out;
}

Result<protocol::Conflicts> correlated_columns(const SparseColumns& x, double threshold,
                                               std::uint64_t memory) {
  constexpr std::uint64_t kBytesOfPair = 16;  // found, and of either block
  const std::uint64_t most_pairs = memory / kBytesOfPair;
  std::vector<double> norms = x.squared_norms();
  for (double& norm : norms) norm = std::sqrt(norm);  // a product of squares may be 0 or infinite
  std::vector<std::vector<SparseColumns::Entry>> by_row(static_cast<std::size_t>(x.rows()));
  std::vector<double> products(norms.size());  // with the columns before this one
  std::vector<std::int32_t> touched;
  std::vector<protocol::Conflicts::Pair> pairs;
  for (std::int32_t c = 0; c < x.columns(); ++c) {
    const auto at = static_cast<std::size_t>(c);
    for (const auto [row, value] : x.column(c)) {
      auto& others = by_row[static_cast<std::size_t>(row)];
      for (const auto [other, theirs] : others) {
        double& product = products[static_cast<std::size_t>(other)];
        if (product == 0) touched.push_back(other);
        product += value * theirs;
      }
      others.push_back({c, value});
    }
    for (const std::int32_t other : touched) {
      double& product = products[static_cast<std::size_t>(other)];
      const double most = norms[at] * norms[static_cast<std::size_t>(other)];
      // a sum that was 0 meanwhile is listed twice; the second time it is 0, and no conflict
      if (most > 0 && std::abs(product) >= threshold * most) pairs.push_back({other, c});
      product = 0;
    }
    touched.clear();
    if (pairs.size() > most_pairs) {
      return Status(Code::kExhausted,
                    fmt::format("more than {} pairs of columns are in conflict", most_pairs));
    }
  }
  return protocol::Conflicts::of(x.columns(), pairs);
}

}  // namespace stormo::strads
