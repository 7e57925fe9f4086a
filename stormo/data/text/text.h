#pragma once

#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// The whole file. kNotFound or kIo name it; kInvalidArgument when it is empty.
Result<std::string> read_text(const std::string& path);

/// All text files below `directory` whose names end in one of `extensions` (".md", ".cc"), joined
/// in the order of their paths, each ended by a newline; the result does not depend on where the
/// directory is. Left out: hidden files and folders, folders named "build", symbolic links, and
/// files with a zero byte. kInvalidArgument when no file is left.
Result<std::string> read_text_tree(const std::string& directory,
                                   std::span<const std::string> extensions);

/// Each of `paths` is a file or a directory; the texts are joined in the order given.
Result<std::string> read_texts(std::span<const std::string> paths,
                               std::span<const std::string> extensions);

}  // namespace stormo::data
