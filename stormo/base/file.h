#pragma once

#include <filesystem>
#include <string>

namespace stormo {

/// The first line of a file such as those in /proc and /sys, without its end; empty when the file
/// cannot be read.
std::string first_line(const std::filesystem::path& path);

}  // namespace stormo
