#include <stormo/checkpoint/file/safetensors_file.h>

#include <algorithm>
#include <bit>

namespace stormo::checkpoint {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

Result<SafetensorsLayout> read_safetensors_layout(std::uint64_t file_bytes, const ReadAt& read) {
  std::uint64_t length = 0;
  if (file_bytes < sizeof(length)) return Status(Code::kCorrupt, "too short for a header");
  STORMO_RETURN_IF_ERROR(read(0, &length, sizeof(length)));
  if (length > kMaxSafetensorsHeaderBytes) {
    return Status(Code::kCorrupt, "header longer than 16 MiB; not a safetensors file?");
  }
  if (length > file_bytes - sizeof(length)) return Status(Code::kCorrupt, "header is cut short");
  std::string json(static_cast<std::size_t>(length), '\0');
  STORMO_RETURN_IF_ERROR(read(sizeof(length), json.data(), json.size()));
  SafetensorsLayout layout;
  layout.data_begin = sizeof(length) + length;
  STORMO_ASSIGN_OR_RETURN(layout.header,
                          parse_safetensors_header(json, file_bytes - layout.data_begin));
  return layout;
}

Result<FileDigest> write_safetensors_file(const std::string& path, SafetensorsHeader& header,
                                          const WriteValues& write) {
  STORMO_ASSIGN_OR_RETURN(const std::string json, format_safetensors_header(header));
  const std::uint64_t length = json.size();
  FileWriter file;
  STORMO_RETURN_IF_ERROR(file.create(path));
  STORMO_RETURN_IF_ERROR(file.write(&length, sizeof(length)));
  STORMO_RETURN_IF_ERROR(file.write(json));
  for (const SafetensorsEntry& e : header.entries) STORMO_RETURN_IF_ERROR(write(e, file));
  return file.finish();
}

Status check_values(const std::string& dtype, const void* values, std::size_t bytes) {
  const auto* begin = static_cast<const std::uint8_t*>(values);
  if (dtype == "BOOL" && std::any_of(begin, begin + bytes, [](std::uint8_t b) { return b > 1; })) {
    return Status(Code::kCorrupt, "a bool that is neither 0 nor 1");
  }
  return ok_status();
}

}  // namespace stormo::checkpoint
