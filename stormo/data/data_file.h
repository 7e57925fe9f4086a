#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>

namespace stormo::data {

/// A file of samples, open for reading. It is read, not memory-mapped: if the file shrinks, the
/// failure names it, while a mapping would end the process by SIGBUS. Thread-safe.
class DataFile {
 public:
  /// kNotFound or kIo; kInvalidArgument if it is not a regular file (a folder, a pipe, a device).
  /// Never blocks.
  static Result<std::shared_ptr<const DataFile>> open(const std::string& path);

  const std::string& path() const { return path_; }
  /// Bytes when it was opened.
  std::uint64_t size() const { return size_; }
  /// Fills `out` from `offset` on; kCorrupt when the file ends before.
  Status read(std::uint64_t offset, std::span<std::byte> out) const;
  /// The first `most` bytes, or all of a shorter file; kExhausted when there is not enough memory.
  Result<std::string> read_front(
      std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) const;
  /// A new descriptor of the file. All have one position, which begins at its start. kIo.
  Result<Descriptor> duplicate() const;

 private:
  DataFile(std::string path, Descriptor file, std::uint64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}

  std::string path_;
  Descriptor file_;
  std::uint64_t size_;
};

/// All of a file, opened as above.
Result<std::string> read_data_file(const std::string& path);

}  // namespace stormo::data
