#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/checkpoint/dcp.h>
#include <stormo/checkpoint/export.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/format/manifest.h>
#include <stormo/checkpoint/pytorch/dcp_names.h>
#include <stormo/checkpoint/pytorch/torch_archive.h>
#include <stormo/checkpoint/writer.h>

namespace stormo::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string in_quotes(const std::string& name) { return "'" + printable_line(name) + "'"; }

/// The files of a DCP folder, opened when something in them is wanted.
class DcpFiles {
 public:
  explicit DcpFiles(std::string folder) : folder_(std::move(folder)) {}

  /// Reads from the beginning of an archive. The reader lives as long as this object.
  Result<ReadAt> open(const DcpPlace& place) {
    FileReader& file = files_[place.file];
    const std::string path = fs::path(folder_) / place.file;
    if (file.size() == 0) {
      const Status opened = file.open(path);
      if (opened.code() == Code::kNotFound) {
        return Status(Code::kCorrupt, path + " is missing: copy all files of the folder");
      }
      STORMO_RETURN_IF_ERROR(opened);
    }
    if (place.offset > file.size() || place.bytes > file.size() - place.offset) {
      return Status(Code::kCorrupt,
                    fmt::format("{} has {} bytes, but should have something at {} to {}: it is cut "
                                "short; copy it again",
                                path, file.size(), place.offset, place.offset + place.bytes));
    }
    return ReadAt([&file, place](std::uint64_t at, void* data, std::size_t bytes) -> Status {
      if (at > place.bytes || bytes > place.bytes - at) {
        return Status(Code::kCorrupt, "an archive ends too early");
      }
      return file.read(place.offset + at, data, bytes);
    });
  }

 private:
  std::string folder_;
  std::map<std::string, FileReader> files_;
};

/// Memory that a Piece keeps.
Result<std::shared_ptr<char[]>> memory_for(std::size_t bytes) {
  std::shared_ptr<char[]> out(new (std::nothrow) char[std::max<std::size_t>(bytes, 1)]);
  if (out == nullptr) return Status(Code::kExhausted, "no memory for all of the folder");
  return out;
}

Status read_chunk_of(const DcpEntry& entry, const DcpChunk& chunk, DcpFiles& files, Piece& piece) {
  STORMO_ASSIGN_OR_RETURN(const ReadAt read, files.open(chunk.place));
  STORMO_ASSIGN_OR_RETURN(const TorchArchive archive, TorchArchive::open(chunk.place.bytes, read));
  STORMO_ASSIGN_OR_RETURN(const ArchivedTensor tensor, archive.tensor());
  if (tensor.dtype != entry.dtype || tensor.shape != chunk.box.sizes) {
    return Status(Code::kCorrupt, fmt::format("a part of it is {} [{}], not {} [{}]", tensor.dtype,
                                              fmt::join(tensor.shape, ", "), entry.dtype,
                                              fmt::join(chunk.box.sizes, ", ")));
  }
  const auto bytes = static_cast<std::size_t>(*num_elements(tensor.shape)) *
                     *safetensors_dtype_bytes(tensor.dtype);
  STORMO_ASSIGN_OR_RETURN(const std::shared_ptr<char[]> values, memory_for(bytes));
  STORMO_RETURN_IF_ERROR(read_values(tensor, read, values.get()));
  piece.data = values.get();
  piece.owner = values;
  return {};
}

Status add_tensor(const DcpEntry& entry, const std::string& name, DcpFiles& files,
                  std::vector<Piece>& pieces) {
  for (const DcpChunk& chunk : entry.chunks) {
    Piece piece{.name = name, .dtype = entry.dtype, .shape = entry.shape, .box = chunk.box};
    const Status read = read_chunk_of(entry, chunk, files, piece);
    if (!read.ok()) return read.within(in_quotes(entry.name) + " in " + chunk.place.file);
    pieces.push_back(std::move(piece));
  }
  return {};
}

/// A number of updates, in whatever type PyTorch keeps it, as the float32 of a checkpoint.
Status add_step(const Piece& saved, std::vector<Piece>& pieces) {
  double steps = 0;
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, saved.data, sizeof value);
    steps = static_cast<double>(value);
  };
  if (num_elements(saved.shape) != 1) return invalid_argument("it is not one number");
  if (saved.dtype == "F32") {
    as(float{});
  } else if (saved.dtype == "F64") {
    as(double{});
  } else if (saved.dtype == "I64") {
    as(std::int64_t{});
  } else {
    return invalid_argument("a count of updates is no " + saved.dtype);
  }
  STORMO_ASSIGN_OR_RETURN(const std::shared_ptr<char[]> value, memory_for(sizeof(float)));
  const auto number = static_cast<float>(steps);
  std::memcpy(value.get(), &number, sizeof number);
  pieces.push_back({.name = saved.name,
                    .dtype = "F32",
                    .shape = {},
                    .end = 1,
                    .data = value.get(),
                    .owner = value});
  return {};
}

/// A small object that is no tensor, as its pickle.
Result<std::string> read_object(const DcpEntry& entry, DcpFiles& files) {
  const auto read_archive = [&]() -> Result<TorchArchive> {
    STORMO_ASSIGN_OR_RETURN(const ReadAt read, files.open(entry.place));
    return TorchArchive::open(entry.place.bytes, read);
  };
  const Result<TorchArchive> archive = read_archive();
  if (!archive.ok()) return archive.status().within(in_quotes(entry.name));
  return archive->pickle();
}

Result<std::vector<DcpEntry>> read_entries(const std::string& folder) {
  const std::string path = fs::path(folder) / kDcpMetadata;
  const Result<std::string> text = read_text_file(path, kMaxDcpMetadataBytes);
  if (text.status().code() == Code::kNotFound) {
    std::error_code ignored;
    const bool ours = fs::exists(fs::path(folder) / Manifest::kFile, ignored);
    return invalid_argument(
        folder + (ours ? " is a checkpoint of Stormo: train with --resume or --init-from it"
                       : " has no file .metadata: it is no folder of torch.distributed.checkpoint, "
                         "or its save did not end; name the folder that dcp.save() was given"));
  }
  STORMO_RETURN_IF_ERROR(text.status());
  auto entries = parse_dcp_metadata(*text);
  if (!entries.ok()) return entries.status().within(path);
  return entries;
}

Status add_optimizer_state(const DcpNames& names, DcpFiles& files, std::vector<Piece>& pieces) {
  for (const OptimizerTensor& t : names.optimizer) {
    std::vector<Piece> read;
    STORMO_RETURN_IF_ERROR(add_tensor(*t.entry, t.name, files, read));
    if (!t.counts_steps) {
      std::move(read.begin(), read.end(), std::back_inserter(pieces));
      continue;
    }
    const Status added = add_step(read.front(), pieces);
    if (!added.ok()) return added.within(in_quotes(t.entry->name));
  }
  return {};
}

Result<ImportedDcp> import_folder(const std::string& folder, const std::string& directory) {
  STORMO_ASSIGN_OR_RETURN(const std::vector<DcpEntry> entries, read_entries(folder));
  STORMO_RETURN_IF_ERROR(check_new_folder(directory));
  DcpFiles files(folder);
  const auto read = [&](const DcpEntry& entry) { return read_object(entry, files); };
  auto names = names_of_dcp(entries, read);
  if (!names.ok()) return names.status().within(folder);
  Snapshot snapshot;
  snapshot.run = new_run();
  for (const auto& [name, entry] : names->model) {
    STORMO_RETURN_IF_ERROR(add_tensor(*entry, name, files, snapshot.pieces).within(folder));
  }
  STORMO_RETURN_IF_ERROR(add_optimizer_state(*names, files, snapshot.pieces).within(folder));
  STORMO_ASSIGN_OR_RETURN(const auto group, comm::make_inproc_group(1));
  STORMO_ASSIGN_OR_RETURN(std::string path,
                          save_checkpoint(*group.front(), directory, std::move(snapshot), 1));
  return ImportedDcp{std::move(path), std::move(names->left_out)};
}

}  // namespace

// What goes wrong is told with names from the folder, which may hold anything.
Result<ImportedDcp> import_dcp(const std::string& folder, const std::string& directory) {
  Result<ImportedDcp> imported = import_folder(folder, directory);
  if (imported.ok()) return imported;
  return Status(imported.status().code(), printable_line(imported.status().message()));
}

}  // namespace stormo::checkpoint
