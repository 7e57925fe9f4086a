#include <stormo/checkpoint/writer.h>

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <iterator>
#include <map>
#include <utility>

#include <stormo/base/version.h>
#include <stormo/checkpoint/exchange.h>
#include <stormo/checkpoint/file/safetensors_file.h>
#include <stormo/checkpoint/file/staging.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/format/manifest.h>

namespace stormo::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Rank 0's name of a new staging folder.
Result<std::string> open_staging(StagingFolder& staging, const std::string& directory,
                                 std::int64_t step) {
  STORMO_RETURN_IF_ERROR(create_directories(directory));
  remove_stale_staging(directory);
  STORMO_RETURN_IF_ERROR(staging.create(directory, std::to_string(step)));
  return fs::path(staging.path()).filename().string();
}

std::string key_of(const Piece& piece, const Box& box) {
  if (box.sizes == piece.shape) return piece.name;
  std::string key = piece.name + "[";
  for (std::size_t d = 0; d < box.sizes.size(); ++d) {
    fmt::format_to(std::back_inserter(key), "{}{}:{}", d == 0 ? "" : ",", box.offsets[d],
                   box.offsets[d] + box.sizes[d]);
  }
  return key + "]";
}

Status add_piece(const Piece& piece, const std::string& file, SafetensorsHeader& header,
                 std::map<std::string, const char*>& values, Manifest& manifest) {
  STORMO_RETURN_IF_ERROR(check_piece(piece));
  if (piece.name.empty() || piece.name == "__metadata__") {
    return invalid_argument("'" + piece.name + "' cannot name a tensor");
  }
  SavedTensor& tensor = manifest.tensors[piece.name];
  if (tensor.dtype.empty()) {
    tensor.dtype = piece.dtype;
    tensor.shape = piece.shape;
  }
  if (tensor.dtype != piece.dtype || tensor.shape != piece.shape) {
    return invalid_argument("tensor '" + piece.name + "' is given with two shapes or dtypes");
  }
  const char* next = static_cast<const char*>(piece.data);
  std::vector<Box> boxes = piece.box ? std::vector<Box>{*piece.box}
                                     : boxes_of_range(piece.shape, piece.begin, piece.end);
  for (Box& box : boxes) {
    const std::string key = key_of(piece, box);
    if (!values.emplace(key, next).second) {
      return invalid_argument("'" + key + "' is given twice");
    }
    next +=
        static_cast<std::size_t>(*num_elements(box.sizes)) * *safetensors_dtype_bytes(piece.dtype);
    header.entries.push_back({.name = key, .dtype = piece.dtype, .shape = box.sizes});
    tensor.boxes.push_back({.box = std::move(box), .file = file, .key = key});
  }
  return ok_status();
}

/// Writes the pieces, divided into boxes, as the safetensors file `name` in `folder`, and adds file
/// and boxes to `manifest`. A tensor that is one box keeps its name in the file; other boxes are
/// named by a slice as in Python, "name[0:2,3:5]".
Status write_shard(const std::string& folder, const std::string& name,
                   const std::vector<Piece>& pieces, Manifest& manifest) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  std::map<std::string, const char*> values;
  for (const Piece& piece : pieces) {
    STORMO_RETURN_IF_ERROR(add_piece(piece, name, header, values, manifest));
  }
  const auto write = [&](const SafetensorsEntry& e, FileWriter& file) {
    return file.write(values.at(e.name), static_cast<std::size_t>(e.end - e.begin));
  };
  STORMO_ASSIGN_OR_RETURN(
      manifest.files[name],
      write_safetensors_file(std::filesystem::path(folder) / name, header, write));
  return ok_status();
}

/// Writes this rank's shard; the manifest of it as a text, empty when it has nothing to write.
Result<std::string> write_part(const comm::Communicator& world, const fs::path& folder,
                               const Snapshot& snapshot) {
  if (snapshot.pieces.empty()) return std::string();
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    return invalid_argument(fmt::format(
        "{} does not see the folder that rank 0 created in {}; all ranks must reach the same "
        "folder under this name: choose one on a shared file system with "
        "checkpoint.directory=DIR",
        world.host(), folder.parent_path().string()));
  }
  Manifest part;
  STORMO_RETURN_IF_ERROR(write_shard(folder, fmt::format("shard-{:05}.safetensors", world.rank()),
                                     snapshot.pieces, part));
  return format_manifest(part);
}

Status merge(Manifest& all, Manifest&& part) {
  all.files.merge(part.files);
  for (auto& [name, tensor] : part.tensors) {
    SavedTensor& known = all.tensors[name];
    if (known.dtype.empty()) {
      known = std::move(tensor);
      continue;
    }
    if (known.dtype != tensor.dtype || known.shape != tensor.shape) {
      return invalid_argument("tensor '" + name + "' has another shape or dtype on another rank");
    }
    std::move(tensor.boxes.begin(), tensor.boxes.end(), std::back_inserter(known.boxes));
  }
  return ok_status();
}

/// The whole manifest out of the ranks' outcomes.
Result<Manifest> assemble(const std::vector<std::string>& outcomes, const Snapshot& s) {
  Manifest m{.run = s.run,
             .name = s.name,
             .step = s.step,
             .samples = s.samples,
             .stormo_version = kVersion,
             .torch_version = s.torch_version,
             .recipe_json = s.recipe_json,
             .preprocessing_json = s.preprocessing_json,
             .state_json = s.state_json};
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const Result<std::string> outcome = decode_outcome(outcomes[rank]);
    const std::string who = "rank " + std::to_string(rank);
    if (!outcome.ok())
      return outcomes.size() == 1 ? outcome.status() : outcome.status().within(who);
    if (outcome->empty()) continue;
    STORMO_ASSIGN_OR_RETURN(Manifest part, parse_manifest(*outcome));
    STORMO_RETURN_IF_ERROR(merge(m, std::move(part)).within(who));
  }
  STORMO_RETURN_IF_ERROR(check_coverage(m));
  return m;
}

Status publish(StagingFolder& staging, const Manifest& m, const std::string& target) {
  const std::string text = format_manifest(m);
  if (text.size() > kMaxManifestBytes) {
    return invalid_argument(
        fmt::format("{} tensors need a manifest of {} bytes, nobody reads more "
                    "than {}",
                    m.tensors.size(), text.size(), kMaxManifestBytes));
  }
  FileWriter manifest;
  STORMO_RETURN_IF_ERROR(manifest.create(fs::path(staging.path()) / Manifest::kFile));
  STORMO_RETURN_IF_ERROR(manifest.write(text));
  STORMO_RETURN_IF_ERROR(manifest.finish().status());
  return staging.publish(target);
}

/// Rank 0's last part: everything is written, or something failed somewhere.
Result<std::string> complete(StagingFolder& staging, const std::string& directory,
                             const Snapshot& snapshot, const std::vector<std::string>& outcomes,
                             int keep) {
  STORMO_ASSIGN_OR_RETURN(const Manifest manifest, assemble(outcomes, snapshot));
  STORMO_RETURN_IF_ERROR(check_other_runs(directory, snapshot.run));
  std::string target = checkpoint_path(directory, snapshot.step);
  STORMO_RETURN_IF_ERROR(publish(staging, manifest, target));
  STORMO_RETURN_IF_ERROR(point_latest(target).within(target + " is saved"));
  retire_old_checkpoints(directory, keep, target, snapshot.run);
  return target;
}

/// Turns what a full memory throws into an outcome: the other ranks wait for one.
template <class F>
Result<std::string> outcome_of(const F& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    return Status(Code::kExhausted, e.what());
  }
}

}  // namespace

Result<std::string> save_checkpoint(comm::Communicator& world, const std::string& directory,
                                    const Result<Snapshot>& mine, int keep) {
  const Snapshot& snapshot = mine.ok() ? *mine : Snapshot();
  const bool first = world.rank() == 0;
  StagingFolder staging;
  Result<std::string> name = std::string();
  if (first) name = outcome_of([&] { return open_staging(staging, directory, snapshot.step); });
  STORMO_ASSIGN_OR_RETURN(name, broadcast_outcome(world, name));
  const Result<std::string> part = outcome_of([&]() -> Result<std::string> {
    STORMO_RETURN_IF_ERROR(mine.status());
    return write_part(world, fs::path(directory) / *name, snapshot);
  });
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::string> outcomes,
                          gather_texts(world, encode_outcome(part)));
  Result<std::string> path = std::string();
  if (first) {
    path = outcome_of([&] { return complete(staging, directory, snapshot, outcomes, keep); });
  }
  return broadcast_outcome(world, path);
}

}  // namespace stormo::checkpoint
