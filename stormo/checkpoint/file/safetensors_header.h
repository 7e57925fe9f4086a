#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::checkpoint {

/// The entry of one tensor in the header of a safetensors file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< "F32", "I64", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< first byte, relative to the end of the header
  std::uint64_t end = 0;    ///< one beyond the last byte
  bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
  bool operator==(const SafetensorsHeader&) const = default;
};

/// Longer headers are refused before anything is allocated.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 16u << 20;

/// Bytes of one element; empty for dtypes that libtorch does not have.
std::optional<std::size_t> safetensors_dtype_bytes(std::string_view dtype);

/// Parses and checks the JSON between the length and the data, for a file that has `data_bytes`
/// bytes after it. kCorrupt says what is wrong: an entry without its three fields, unknown fields
/// or dtypes, duplicate names, sizes that overflow or do not match shape and dtype, gaps or
/// overlaps between tensors, bytes that belong to no tensor.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes);

/// The JSON of a header, padded with spaces so that the data start at a multiple of 8; fills begin
/// and end of the entries. Sorts them by element width, widest first, then by name.
/// kInvalidArgument for names that are not UTF-8.
Result<std::string> format_safetensors_header(SafetensorsHeader& header);

}  // namespace stormo::checkpoint
