#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>

namespace stormo::plan {

/// One named dimension of a Mesh.
struct Axis {
  std::string name;  ///< "dp", "tp", "pp"
  int size = 1;
  bool operator==(const Axis&) const = default;
};

/// A named grid of ranks, row-major: the last axis varies fastest. No axes means one rank.
struct Mesh {
  std::vector<Axis> axes;
  bool operator==(const Mesh&) const = default;

  int size() const;
  /// Position of the axis, or -1.
  int find(std::string_view axis) const;
  /// Coordinate of `rank` on each axis.
  std::vector<int> coordinates(Rank rank) const;
  /// The ranks that share all coordinates of `rank` except on `axis`, in order.
  std::vector<Rank> group(Rank rank, std::string_view axis) const;
};

}  // namespace stormo::plan
