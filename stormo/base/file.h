#pragma once

#include <filesystem>
#include <string>

#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>

namespace stormo {

/// The first line of a file such as those in /proc and /sys, without its end; empty when the file
/// cannot be read.
std::string first_line(const std::filesystem::path& path);

/// Opens a regular file for reading. Never blocks, also where a pipe is in the file's place.
/// kNotFound; kIo; kInvalidArgument for what is no regular file: "PATH is a folder, no file".
Result<Descriptor> open_regular(const std::string& path);

/// Blocks until the bytes of a file, or the names in a folder, are on the disk. kIo.
Status sync_path(const std::string& path);

}  // namespace stormo
