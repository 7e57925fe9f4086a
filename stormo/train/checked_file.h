#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::train {

/// Size and XXH3-64 checksum of a file's content.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;
  bool operator==(const FileDigest&) const = default;
};

/// Incremental XXH3-64, the checksum of files and weights.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(const void* data, std::size_t bytes);
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 16 hexadecimal digits.
std::string to_hex(std::uint64_t value);

/// A new file, written once and synced. Removes nothing on failure: the caller owns the folder.
class FileWriter {
 public:
  FileWriter() = default;
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  /// Fails when `path` exists already.
  Status create(const std::string& path);
  Status write(const void* data, std::size_t bytes);
  Status write(std::string_view text) { return write(text.data(), text.size()); }
  /// Waits until the content is on the disk.
  Result<FileDigest> finish();

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
  Hasher hasher_;
};

/// A regular file open for reading; links are refused.
class FileReader {
 public:
  FileReader() = default;
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  /// kNotFound, kIo, or kCorrupt for what is no regular file.
  Status open(const std::string& path);
  std::uint64_t size() const { return size_; }
  /// Fills `data` from `offset`; kCorrupt when the file ends before.
  Status read(std::uint64_t offset, void* data, std::size_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

/// Reads the whole file once.
Result<FileDigest> digest_file(const std::string& path);
/// The whole file as text; kCorrupt when it has more than `max_bytes`.
Result<std::string> read_text_file(const std::string& path, std::uint64_t max_bytes);
/// Waits until the entries of a folder are on the disk.
Status sync_directory(const std::string& path);

}  // namespace stormo::train
