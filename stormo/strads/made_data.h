#pragma once

#include <cstdint>
#include <optional>

#include <stormo/base/status.h>
#include <stormo/strads/lasso.h>
#include <stormo/strads/ratings.h>

namespace stormo::strads {

/// A regression whose columns are correlated in groups.
struct MadeRegression {
  std::int64_t rows = 1000, columns = 1000;
  /// Of a column, from 1 to rows; nothing: all rows. The columns of a group share theirs.
  std::optional<std::int64_t> nonzeros;
  std::int64_t group = 50;   ///< columns of a group
  double correlation = 0.9;  ///< of two columns of a group, from 0 to 1
  std::uint64_t seed = 1;
};

/// Columns x = sqrt(c) f + sqrt(1 - c) e, with f drawn for each group and e for each column, of
/// uniform values with variance 1 / nonzeros. y = X b + uniform noise with standard deviation 0.1 /
/// sqrt(nonzeros), with every twentieth coefficient from -1 to 1 and the others 0. Its lambda is 0.
LassoProblem make_regression(const MadeRegression& made);

/// A matrix of low rank with noise, of which some elements are known.
struct MadeRatings {
  std::int64_t rows = 1000, columns = 500;
  std::int64_t known = 50;  ///< elements of each row, from 1 to columns
  int rank = 8;
  double noise = 0.1;
  std::uint64_t seed = 1;
};

Ratings make_ratings(const MadeRatings& made);

}  // namespace stormo::strads
