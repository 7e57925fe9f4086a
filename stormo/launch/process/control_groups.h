#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace stormo::launch {

/// Folders of the control groups (version 1 or 2) that bound this process by `controller`
/// ("memory"), each before those above it, up to what is mounted. Not all need exist: in a
/// container a group's path may be that of the host. `root` is where /proc and /sys are looked for.
std::vector<std::filesystem::path> control_groups(const std::string& controller,
                                                  const std::filesystem::path& root = "/");

/// The smallest number in these folders' `v2_file` or `v1_file`; empty: no limit.
std::optional<std::uint64_t> control_group_limit(const std::string& controller,
                                                 const std::string& v2_file,
                                                 const std::string& v1_file,
                                                 const std::filesystem::path& root = "/");

}  // namespace stormo::launch
