#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace stormo::launch {

/// Tells whether the kernel has ended processes since this was made because memory ran out: those
/// of this process's control group (version 1 or 2), else those of the machine.
class MemoryKills {
 public:
  /// `root` is where /proc and /sys are looked for.
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
