#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include <stormo/base/status.h>

namespace stormo::data {

/// A file of samples, open for reading. It is read, never mapped: a file that shrinks meanwhile is
/// a failure that names it, where a mapping would end the process by SIGBUS. Thread-safe.
class DataFile {
 public:
  /// kNotFound or kIo; kInvalidArgument for what is no regular file (a folder, a pipe, a device:
  /// these have no end that could be waited for). Never blocks.
  static Result<std::shared_ptr<const DataFile>> open(const std::string& path);
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  /// Bytes when it was opened.
  std::uint64_t size() const { return size_; }
  /// Fills `out` from `offset` on; kCorrupt when the file ends before.
  Status read(std::uint64_t offset, std::span<std::byte> out) const;
  /// The first `most` bytes, all of a shorter file; kExhausted when memory is short.
  Result<std::string> read_front(
      std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) const;
  /// Another descriptor of the file, at its start; the caller closes it. kIo.
  Result<int> duplicate() const;

 private:
  DataFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
  std::uint64_t size_ = 0;
};

/// All of a file, opened as above.
Result<std::string> read_data_file(const std::string& path);

}  // namespace stormo::data
