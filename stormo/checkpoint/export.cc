#include <stormo/checkpoint/export.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <stormo/base/file.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/checkpoint/writer.h>

namespace stormo::checkpoint {
namespace {

constexpr std::int64_t kPortionBytes = 4 << 20;
constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kWrapper = "module.";

Status copy_values(CheckpointReader& reader, const SafetensorsEntry& e, FileWriter& file) {
  const auto width = static_cast<std::int64_t>(*safetensors_dtype_bytes(e.dtype));
  const std::int64_t all = *num_elements(e.shape), portion = kPortionBytes / width;
  std::vector<char> values(static_cast<std::size_t>(std::min(all, portion) * width));
  for (std::int64_t at = 0; at < all; at += portion) {
    const std::int64_t end = std::min(all, at + portion);
    STORMO_RETURN_IF_ERROR(reader.read(e.name, at, end, values.data()));
    STORMO_RETURN_IF_ERROR(file.write(values.data(), static_cast<std::size_t>((end - at) * width)));
  }
  return ok_status();
}

Snapshot snapshot_of(const SafetensorsLayout& layout, const char* file) {
  const auto& entries = layout.header.entries;
  const bool wrapped = std::all_of(entries.begin(), entries.end(),
                                   [](const auto& e) { return e.name.starts_with(kWrapper); });
  Snapshot snapshot;
  for (const SafetensorsEntry& e : entries) {
    snapshot.pieces.push_back({.name = wrapped ? e.name.substr(kWrapper.size()) : e.name,
                               .dtype = e.dtype,
                               .shape = e.shape,
                               .begin = 0,
                               .end = *num_elements(e.shape),
                               .data = file + layout.data_begin + e.begin});
  }
  return snapshot;
}

}  // namespace

Status export_checkpoint(const std::string& path, const std::string& file, bool optimizer) {
  STORMO_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(path));
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (!optimizer && name.starts_with(kOptimizer)) continue;
    header.entries.push_back({.name = name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    return invalid_argument(file + " exists already; remove it, or give another name");
  }
  const Status written =
      write_safetensors_file(file, header, [&](const SafetensorsEntry& e, FileWriter& out) {
        return copy_values(reader, e, out);
      }).status();
  if (!written.ok()) {
    std::filesystem::remove(file, ignored);
    return written;
  }
  return sync_path(std::filesystem::absolute(file).parent_path());
}

Status check_new_folder(const std::string& directory) {
  const Result<std::string> older = newest_checkpoint(directory);
  if (older.status().code() == Code::kNotFound) return {};
  return invalid_argument("'" + directory + "' holds checkpoints; import into a new folder");
}

Result<std::string> import_checkpoint(const std::string& file, const std::string& directory) {
  FileReader reader;
  STORMO_RETURN_IF_ERROR(reader.open(file));
  auto layout = read_safetensors_layout(reader.size(),
                                        [&](std::uint64_t offset, void* data, std::size_t bytes) {
                                          return reader.read(offset, data, bytes);
                                        });
  if (!layout.ok()) return layout.status().within(file);
  if (layout->header.entries.empty()) return invalid_argument(file + " holds no tensors");
  const auto size = static_cast<std::size_t>(reader.size());
  const std::unique_ptr<char[]> content(new (std::nothrow) char[size]);
  if (content == nullptr) return Status(Code::kExhausted, "no memory for all of " + file);
  STORMO_RETURN_IF_ERROR(reader.read(0, content.get(), size));
  STORMO_RETURN_IF_ERROR(check_new_folder(directory));
  STORMO_ASSIGN_OR_RETURN(const auto group, comm::make_inproc_group(1));
  Snapshot snapshot = snapshot_of(*layout, content.get());
  snapshot.run = new_run();
  return save_checkpoint(*group.front(), directory, std::move(snapshot), 1);
}

}  // namespace stormo::checkpoint
