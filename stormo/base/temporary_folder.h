#pragma once

#include <filesystem>
#include <string_view>
#include <utility>

#include <stormo/base/status.h>

namespace stormo {

/// A new folder for its owner alone, removed with all that is in it when this object goes.
class TemporaryFolder {
 public:
  /// Where the system wants temporary files; the name is `prefix` and something random.
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
