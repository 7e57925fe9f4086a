#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::strads {

/// One known element of a matrix.
struct Rating {
  std::int32_t row = 0;
  std::int32_t column = 0;
  double value = 0;
};

/// Memory for a known element, where they are read or made: read, of all rows, and of a worker's.
inline constexpr double kBytesOfRating = 64;

/// The known elements of a matrix of which most are unknown.
struct Ratings {
  std::int64_t rows = 0, columns = 0;
  std::vector<Rating> known;
};

}  // namespace stormo::strads
