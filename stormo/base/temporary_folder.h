#pragma once

#include <filesystem>
#include <string_view>
#include <utility>

#include <stormo/base/status.h>

namespace stormo {

/// A new folder that only this user can enter. It is removed with its content when this object is
/// destroyed.
class TemporaryFolder {
 public:
  /// In the system's folder for temporary files; the name is `prefix` and random characters.
  static Result<TemporaryFolder> create(std::string_view prefix);
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;  ///< empty: moved from
};

}  // namespace stormo
