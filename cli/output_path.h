#pragma once

#include <span>
#include <string>

#include <stormo/base/status.h>

namespace stormo::cli {

/// OK when a file can be written at `path`; else kInvalidArgument that says the remedy. Writes
/// nothing.
Status check_output_path(const std::string& path);

/// The same for files of these names in a folder, which is made when they are written if it does
/// not exist yet.
Status check_output_folder(const std::string& folder, std::span<const char* const> names);

}  // namespace stormo::cli
