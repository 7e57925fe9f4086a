#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <stormo/base/status.h>
#include <stormo/checkpoint/file/checked_file.h>
#include <stormo/checkpoint/file/safetensors_header.h>

namespace stormo::checkpoint {

/// The header of a file, and the position of the first data byte.
struct SafetensorsLayout {
  SafetensorsHeader header;
  std::uint64_t data_begin = 0;
};

/// Fills memory from an offset of a file.
using ReadAt = std::function<Status(std::uint64_t offset, void* data, std::size_t bytes)>;

/// Reads and checks the header of an untrusted file of `file_bytes` bytes. The announced length is
/// checked against the size of the file before memory is allocated.
Result<SafetensorsLayout> read_safetensors_layout(std::uint64_t file_bytes, const ReadAt& read);

/// Writes the values of one entry.
using WriteValues = std::function<Status(const SafetensorsEntry& entry, FileWriter& file)>;

/// Writes a new file and blocks until it is on the disk; sorts the entries of `header`.
Result<FileDigest> write_safetensors_file(const std::string& path, SafetensorsHeader& header,
                                          const WriteValues& write);

/// kCorrupt for booleans that are neither 0 nor 1, because using them is undefined behaviour.
Status check_values(const std::string& dtype, const void* values, std::size_t bytes);

}  // namespace stormo::checkpoint
