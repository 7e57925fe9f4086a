#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace stormo::data {

/// A folder of its own for one test, removed at its end.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "data-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
    root_ = name;
  }
  ~Scratch() {
    std::error_code ignored;  // the system cleans what cannot be removed here
    std::filesystem::remove_all(root_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path(std::string_view name = "") const { return (root_ / name).string(); }
  /// Writes a file, with the folders above it, and returns its path.
  std::string write(std::string_view name, std::string_view bytes) const {
    const auto where = root_ / name;
    std::filesystem::create_directories(where.parent_path());
    std::ofstream(where, std::ios::binary).write(bytes.data(), std::ssize(bytes));
    return where.string();
  }

 private:
  std::filesystem::path root_;
};

}  // namespace stormo::data
