#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace stormo::launch {

/// Folders of the control groups (version 1 or 2) that limit this process by `controller`
/// ("memory"), from the innermost to the outermost mounted one. Some may not exist: in a container
/// a group's path may be that of the host. `root`: the folder of /proc and /sys.
std::vector<std::filesystem::path> control_groups(const std::string& controller,
                                                  const std::filesystem::path& root = "/");

/// The smallest number in these folders' `v2_file` or `v1_file`; empty: no limit.
std::optional<std::uint64_t> control_group_limit(const std::string& controller,
                                                 const std::string& v2_file,
                                                 const std::string& v1_file,
                                                 const std::filesystem::path& root = "/");

}  // namespace stormo::launch
