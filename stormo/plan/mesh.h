#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>

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

  /// The product of the axes' sizes, at most kMaxRanks.
  int size() const;
  /// Position of the axis, or -1.
  int find(std::string_view axis) const;
  /// Coordinate of `rank` on each axis.
  std::vector<int> coordinates(Rank rank) const;
  /// The ranks that share all coordinates of `rank` except on `axis`, in order.
  std::vector<Rank> group(Rank rank, std::string_view axis) const;
  /// The same for several axes, ascending.
  std::vector<Rank> group(Rank rank, std::span<const std::string> over) const;
};

/// "mesh v1 dp=2 tp=4" and the line end, for messages.
std::string to_text(const Mesh& m);
/// Equal meshes have equal hashes, on every machine.
std::uint64_t hash(const Mesh& m);

}  // namespace stormo::plan
