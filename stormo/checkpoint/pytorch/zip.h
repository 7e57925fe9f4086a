#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/checkpoint/file/checked_file.h>
#include <stormo/checkpoint/file/safetensors_file.h>

namespace stormo::checkpoint {

/// A file in a zip archive that is stored as it is.
struct ZipEntry {
  std::string name;
  std::uint64_t begin = 0;  ///< first byte, in the archive
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;  ///< 0: the writer has made none
};

/// The CRC-32 of zip archives; `crc` is that of what comes before.
std::uint32_t crc32_of(const void* data, std::size_t bytes, std::uint32_t crc = 0);

/// The files of an untrusted archive of `bytes` bytes. Each lies inside of it, and no two have one
/// name. kCorrupt says what is wrong; so it does of compressed and encrypted ones, and of more than
/// 1 MiB of names. Archives of more than 4 GiB (zip64) are read, too.
Result<std::vector<ZipEntry>> read_zip_entries(std::uint64_t bytes, const ReadAt& read);

/// Writes an archive of stored files, of less than 4 GiB, into a file, at its present end.
class ZipWriter {
 public:
  /// Borrowed.
  explicit ZipWriter(FileWriter& file) : file_(file) {}

  Status begin(std::string_view name);
  Status write(const void* data, std::size_t bytes);
  Status end();
  /// All of a small file.
  Status add(std::string_view name, std::string_view content);
  /// The directory of the archive. Returns the number of its bytes.
  Result<std::uint64_t> finish();

 private:
  Status put(std::string_view bytes);

  FileWriter& file_;
  std::vector<ZipEntry> entries_;  ///< begin: of what comes before its content
  std::uint64_t size_ = 0;
};

}  // namespace stormo::checkpoint
