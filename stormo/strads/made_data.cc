#include <stormo/strads/made_data.h>

#include <cmath>
#include <set>
#include <vector>

#include <stormo/base/rng.h>

namespace stormo::strads {
namespace {

/// Uniform, with mean 0 and variance 1.
double drawn(Rng& rng) { return std::sqrt(12.0) * (rng.uniform() - 0.5); }

/// Different indices below `bound`, ascending (Floyd's algorithm).
std::set<std::int32_t> some_of(Rng& rng, std::int64_t bound, std::int64_t count) {
  std::set<std::int32_t> out;
  for (std::int64_t i = bound - count; i < bound; ++i) {
    const auto drawn_index =
        static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(i + 1)));
    if (!out.insert(drawn_index).second) out.insert(static_cast<std::int32_t>(i));
  }
  return out;
}

}  // namespace

LassoProblem make_regression(const MadeRegression& made) {
  Rng rng(made.seed, "made regression");
  LassoProblem out{.x = SparseColumns(made.rows),
                   .y = std::vector<double>(static_cast<std::size_t>(made.rows))};
  const std::int64_t nonzeros = made.nonzeros.value_or(made.rows);
  const double scale = 1 / std::sqrt(static_cast<double>(nonzeros));
  const double common = std::sqrt(made.correlation), own = std::sqrt(1 - made.correlation);
  std::vector<SparseColumns::Entry> shared, column;
  for (std::int64_t c = 0; c < made.columns; ++c) {
    if (c % made.group == 0) {
      shared.clear();
      for (const std::int32_t row : some_of(rng, made.rows, nonzeros)) {
        shared.push_back({row, drawn(rng)});
      }
    }
    column = shared;
    for (auto& entry : column) entry.value = scale * (common * entry.value + own * drawn(rng));
    out.x.add_column(column);
    if (c % 20 == 0) out.x.add(c, 2 * rng.uniform() - 1, out.y);
  }
  for (double& y : out.y) y += 0.1 * scale * drawn(rng);
  return out;
}

Ratings make_ratings(const MadeRatings& made) {
  Rng rng(made.seed, "made ratings");
  const auto factors = [&](std::int64_t count) {
    std::vector<double> out(static_cast<std::size_t>(count * made.rank));
    for (double& value : out) value = drawn(rng);
    return out;
  };
  const std::vector<double> w = factors(made.rows), h = factors(made.columns);
  Ratings out{.rows = made.rows, .columns = made.columns, .known = {}};
  const double scale = 1 / std::sqrt(static_cast<double>(made.rank));
  for (std::int64_t i = 0; i < made.rows; ++i) {
    for (const std::int32_t j : some_of(rng, made.columns, made.known)) {
      double value = 0;
      for (int k = 0; k < made.rank; ++k) {
        value += w[static_cast<std::size_t>(i * made.rank + k)] *
                 h[static_cast<std::size_t>(std::int64_t{j} * made.rank + k)];
      }
      out.known.push_back(
          {static_cast<std::int32_t>(i), j, scale * value + made.noise * drawn(rng)});
    }
  }
  return out;
}

}  // namespace stormo::strads
