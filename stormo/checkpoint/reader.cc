#include <stormo/checkpoint/reader.h>

#include <filesystem>
#include <utility>
#include <vector>

namespace stormo::checkpoint {

namespace fs = std::filesystem;

Result<CheckpointReader> CheckpointReader::open(const std::string& path) {
  CheckpointReader reader;
  reader.path_ = path;
  STORMO_ASSIGN_OR_RETURN(reader.manifest_, check_checkpoint(path, false));
  if (reader.manifest_.schema == 1) STORMO_RETURN_IF_ERROR(reader.add_legacy_tensors());
  return reader;
}

// In schema 1 the headers of the files are the table of tensors.
Status CheckpointReader::add_legacy_tensors() {
  for (const auto& [file, digest] : manifest_.files) {
    STORMO_ASSIGN_OR_RETURN(Shard* const opened, shard(file));
    for (const auto& [name, e] : opened->entries) {
      SavedTensor tensor{.dtype = e.dtype, .shape = e.shape, .boxes = {}};
      tensor.boxes.push_back({.box = {std::vector<std::int64_t>(e.shape.size(), 0), e.shape},
                              .file = file,
                              .key = name});
      if (!manifest_.tensors.emplace(name, std::move(tensor)).second) {
        return Status(Code::kCorrupt, path_ + ": tensor '" + name + "' is in two files");
      }
    }
  }
  manifest_.schema = Manifest::kSchema;
  return ok_status();
}

Result<CheckpointReader::Shard*> CheckpointReader::shard(const std::string& file) {
  std::unique_ptr<Shard>& slot = shards_[file];
  if (slot != nullptr) return slot.get();
  auto opened = std::make_unique<Shard>();
  const std::string path = fs::path(path_) / file;
  STORMO_RETURN_IF_ERROR(opened->file.open(path, manifest_.files.at(file)));
  auto layout = read_safetensors_layout(opened->file.size(),
                                        [&](std::uint64_t offset, void* data, std::size_t bytes) {
                                          return opened->file.read(offset, data, bytes);
                                        });
  if (!layout.ok()) return layout.status().within(path);
  opened->data_begin = layout->data_begin;
  for (SafetensorsEntry& e : layout->header.entries) {
    std::string key = e.name;
    opened->entries.emplace(std::move(key), std::move(e));
  }
  slot = std::move(opened);
  return slot.get();
}

// The file of a box is opened only when something in it is wanted.
Status CheckpointReader::read_box(const SavedTensor& tensor, const SavedBox& saved,
                                  std::int64_t begin, std::int64_t end, char* destination) {
  const std::uint64_t width = *safetensors_dtype_bytes(tensor.dtype);
  Shard* shard = nullptr;
  std::uint64_t first = 0;
  const auto read_run = [&](const Run& run) -> Status {
    if (shard == nullptr) {
      STORMO_ASSIGN_OR_RETURN(shard, this->shard(saved.file));
      const auto entry = shard->entries.find(saved.key);
      if (entry == shard->entries.end() || entry->second.dtype != tensor.dtype ||
          entry->second.shape != saved.box.sizes) {
        return Status(Code::kCorrupt, saved.file + " has no '" + saved.key +
                                          "' of the shape and dtype that the manifest states");
      }
      first = shard->data_begin + entry->second.begin;
    }
    const auto bytes = static_cast<std::size_t>(run.count) * width;
    char* to = destination + static_cast<std::uint64_t>(run.in_tensor - begin) * width;
    STORMO_RETURN_IF_ERROR(
        shard->file.read(first + static_cast<std::uint64_t>(run.in_box) * width, to, bytes));
    return check_values(tensor.dtype, to, bytes);
  };
  Status failure;
  for_runs(saved.box, tensor.shape, begin, end, [&](const Run& run) {
    if (failure.ok()) failure = read_run(run);
  });
  return failure;
}

Status CheckpointReader::read(const std::string& name, std::int64_t begin, std::int64_t end,
                              void* destination) {
  const auto found = manifest_.tensors.find(name);
  if (found == manifest_.tensors.end()) {
    return Status(Code::kNotFound, path_ + " has no tensor '" + name + "'");
  }
  const SavedTensor& tensor = found->second;
  if (begin < 0 || end < begin || end > *num_elements(tensor.shape)) {
    return invalid_argument("elements " + std::to_string(begin) + " to " + std::to_string(end) +
                            " do not lie in tensor '" + name + "' of " + path_);
  }
  for (const SavedBox& box : tensor.boxes) {
    STORMO_RETURN_IF_ERROR(read_box(tensor, box, begin, end, static_cast<char*>(destination))
                               .within(path_ + ": tensor '" + name + "'"));
  }
  return ok_status();
}

}  // namespace stormo::checkpoint
