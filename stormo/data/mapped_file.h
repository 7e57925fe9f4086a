#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include <stormo/base/status.h>

namespace stormo::data {

/// A file as memory, for reading only; pages come in when they are touched. The file must not
/// shrink meanwhile: reading what is gone ends the process (SIGBUS).
class MappedFile {
 public:
  /// kNotFound or kIo; an empty file is kCorrupt.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace stormo::data
