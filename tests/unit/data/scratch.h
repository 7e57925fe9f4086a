#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <stormo/base/temporary_folder.h>

namespace stormo::data {

/// A folder of its own for one test, removed at its end.
class Scratch {
 public:
  std::string path(std::string_view name = "") const { return (folder_.path() / name).string(); }
  /// Writes a file, with the folders above it, and returns its path.
  std::string write(std::string_view name, std::string_view bytes) const {
    const auto where = folder_.path() / name;
    std::filesystem::create_directories(where.parent_path());
    std::ofstream(where, std::ios::binary).write(bytes.data(), std::ssize(bytes));
    return where.string();
  }

 private:
  TemporaryFolder folder_ = TemporaryFolder::create("data-test").take_or_throw();
};

}  // namespace stormo::data
