#pragma once

#include <string>
#include <vector>

namespace stormo::checkpoint {

/// The run to which a checkpoint belongs. It stays the same when the run is resumed.
struct RunIdentity {
  /// 16 hexadecimal digits; empty in checkpoints of older programs, or of programs that set none.
  std::string id{};
  /// Runs whose checkpoints in the same folder become invalid when there is one of this run.
  std::vector<std::string> replaces{};
  bool operator==(const RunIdentity&) const = default;
};

}  // namespace stormo::checkpoint
