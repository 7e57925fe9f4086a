#pragma once

#include <string>
#include <vector>

namespace stormo::checkpoint {

/// Which run a checkpoint belongs to. It stays the same when the run is resumed.
struct RunIdentity {
  /// 16 hexadecimal digits; empty in what was written by older programs, or by one that gives none.
  std::string id{};
  /// Runs whose checkpoints in the same folder count no more once there is one of this run.
  std::vector<std::string> replaces{};
  bool operator==(const RunIdentity&) const = default;
};

/// A new run that replaces others.
RunIdentity new_run(std::vector<std::string> replaces = {});

/// The run that goes on from a checkpoint of `run`. One without an identity gets one, and replaces
/// what has none.
RunIdentity continued_run(const RunIdentity& run);

}  // namespace stormo::checkpoint
