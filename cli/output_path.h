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

/// Who may read the files and folders that this process will write: "owner", "group" or "everyone";
/// "umask": as it is. For the whole process.
void set_access(const std::string& access);

/// Files that this process will write can be read by nobody who cannot read the file at `source`.
void restrict_access_as(const std::string& source);

}  // namespace stormo::cli
