#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>

namespace stormo::checkpoint {

/// The size of a file and the XXH3-64 checksum of each of its blocks; the last block may be
/// shorter. So each part can be checked when it is read, and several parts at the same time.
struct FileDigest {
  static constexpr std::uint64_t kBlockBytes = 1u << 20;  ///< of the files that we write

  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = kBlockBytes;
  std::vector<std::uint64_t> blocks{};  ///< as many as `bytes` need
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
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 16 hexadecimal digits.
std::string to_hex(std::uint64_t value);

/// A new file, written once and synced. Removes nothing on failure: the caller owns the folder.
class FileWriter {
 public:
  /// Fails when `path` exists already. Its mode is 0666 less the umask.
  Status create(const std::string& path);
  Status write(const void* data, std::size_t bytes);
  Status write(std::string_view text) { return write(text.data(), text.size()); }
  /// Blocks until the content is on the disk.
  Result<FileDigest> finish();

 private:
  Status append(const char* data, std::size_t bytes);
  Status flush();

  std::string path_;
  Descriptor file_;
  std::string pending_;  ///< small writes, collected for a large one
  FileDigest digest_;
  Hasher hasher_;  ///< of the block that is not full yet
};

/// A regular file open for reading; symbolic links are refused.
class FileReader {
 public:
  /// kNotFound, kIo, or kCorrupt if it is not a regular file.
  Status open(const std::string& path);
  std::uint64_t size() const { return size_; }
  /// Fills `data` from `offset`; kCorrupt when the file ends before.
  Status read(std::uint64_t offset, void* data, std::size_t bytes) const;

 private:
  std::string path_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

/// A file that is compared with its digest while it is read, so that only checked bytes are
/// returned. Not thread-safe.
class VerifiedFile {
 public:
  /// kCorrupt when the size differs. Files with blocks larger than 16 MiB are verified here.
  Status open(const std::string& path, const FileDigest& expected);
  std::uint64_t size() const { return file_.size(); }
  /// Fills `data` from `offset`. Reads whole blocks; the last one is kept for the next call. After
  /// kCorrupt `data` has the damaged content.
  Status read(std::uint64_t offset, void* data, std::size_t bytes);
  /// Reads and checks the whole file, without keeping it.
  Status verify();

 private:
  Status read_block(std::size_t index, char* into);

  std::string path_;
  FileReader file_;
  FileDigest expected_;
  bool verified_ = false;
  std::size_t block_index_ = SIZE_MAX;  ///< which one `block_` holds
  std::vector<char> block_;
};

/// Reads the whole file once.
Result<FileDigest> digest_file(const std::string& path,
                               std::uint64_t block_bytes = FileDigest::kBlockBytes);
/// The whole file as text; kCorrupt when it has more than `max_bytes`.
Result<std::string> read_text_file(const std::string& path, std::uint64_t max_bytes);
/// Blocks until the entries of a folder are on the disk.
Status sync_directory(const std::string& path);
/// Creates a folder, and those above it that are missing; their names are on the disk afterwards.
Status create_directories(const std::string& path);

}  // namespace stormo::checkpoint
