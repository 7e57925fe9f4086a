#pragma once

#include <functional>
#include <iosfwd>
#include <string>

#include <stormo/base/status.h>

namespace stormo {

/// Writes a file so that at `path` there is always all of the old file or all of the new one: into
/// `path` + ".new", which is synced to the disk and then takes its place. A symbolic link stays,
/// and its target is replaced; what is no regular file, such as /dev/stdout, is written into as it
/// is. kIo, and the old file as it was, when that fails.
Status replace_file(const std::string& path, const std::function<void(std::ostream&)>& write);

}  // namespace stormo
