#pragma once

#include <string>

#include <stormo/base/status.h>

namespace stormo::cli {

/// OK when a file can be written at `path`; else kInvalidArgument that says the remedy. Writes
/// nothing.
Status check_output_path(const std::string& path);

}  // namespace stormo::cli
