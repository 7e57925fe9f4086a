#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace stormo::launch {

/// Detects whether the kernel has killed processes because memory ran out since this object was
/// made: processes of this process's control group (version 1 or 2), else of the machine.
class MemoryKills {
 public:
  /// `root`: the folder of /proc and /sys.
  explicit MemoryKills(std::filesystem::path root = "/");

  /// A line with cause and remedy; empty when there were none.
  std::string why_killed() const;

 private:
  std::filesystem::path root_;
  std::filesystem::path group_;  ///< folder of the control group; empty: not known
  std::int64_t in_group_ = 0;    ///< kills when this was made
  std::int64_t on_machine_ = 0;
};

}  // namespace stormo::launch
