#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/file_tree.h>

namespace stormo::data {

/// The whole file. kNotFound or kIo name it; kInvalidArgument when it is empty.
Result<std::string> read_text(const std::string& path);

/// The text of some files.
struct Texts {
  std::string text;
  FileCount files;
};

/// The file `path`, or all text files below the folder `path` whose names end in one of
/// `extensions` (".md", ".cc"; also in upper case), found by FileTree and joined in the order of
/// their paths, each ended by a newline; the result does not depend on where the folder is. Folders
/// named "build" and empty files are left out. A file with a zero byte is no text and cannot be
/// read. kInvalidArgument when no text is left.
Result<Texts> read_texts(const std::string& path, const std::vector<std::string>& extensions,
                         OnError on_error = OnError::kFail);

}  // namespace stormo::data
