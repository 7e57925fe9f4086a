#include <stormo/train/checkpoint.h>

#include <fmt/format.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/base/version.h>
#include <stormo/train/checked_file.h>
#include <stormo/train/manifest.h>
#include <stormo/train/safetensors.h>
#include <stormo/train/staging.h>

namespace stormo::train {
namespace {

namespace fs = std::filesystem;
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kManifestFile = "manifest.json";
constexpr std::string_view kStepPrefix = "step-";

std::optional<std::int64_t> step_of(const std::string& folder_name) {
  if (!folder_name.starts_with(kStepPrefix)) return std::nullopt;
  const char* begin = folder_name.data() + kStepPrefix.size();
  const char* end = folder_name.data() + folder_name.size();
  std::int64_t step = 0;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc{} || stop != end || step < 0) return std::nullopt;
  return step;
}

/// Folders named like checkpoints that have a manifest, newest first, and how many have none.
struct Listing {
  std::vector<std::pair<std::int64_t, std::string>> complete;
  int incomplete = 0;
};

Listing list_checkpoints(const std::string& directory) {
  Listing listing;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const auto step = step_of(entry.path().filename());
    if (!step || !entry.is_directory(ignored)) continue;
    if (fs::exists(entry.path() / kManifestFile, ignored)) {
      listing.complete.emplace_back(*step, entry.path().string());
    } else {
      ++listing.incomplete;
    }
  }
  std::sort(listing.complete.begin(), listing.complete.end(), std::greater<>());
  return listing;
}

Status write_folder(const std::string& folder, const Snapshot& s) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  Manifest m{.name = s.name,
             .step = s.step,
             .samples = s.samples,
             .weights_hash = weights_hash(s.model),
             .stormo_version = kVersion,
             .torch_version = TORCH_VERSION,
             .recipe_json = s.recipe_json};
  for (const auto& [file, tensors] :
       {std::pair(kModelFile, &s.model), std::pair(kOptimizerFile, &s.optimizer)}) {
    STORMO_ASSIGN_OR_RETURN(m.files[file],
                            write_safetensors(fs::path(folder) / file, *tensors, metadata));
  }
  FileWriter manifest;
  STORMO_RETURN_IF_ERROR(manifest.create(fs::path(folder) / kManifestFile));
  STORMO_RETURN_IF_ERROR(manifest.write(format_manifest(m)));
  return manifest.finish().status();
}

/// Where an older complete checkpoint helps, says so: falling back silently would lose work.
std::string remedy(const Listing& listing, const std::string& damaged) {
  for (const auto& [step, path] : listing.complete) {
    if (path != damaged && check_checkpoint(path, false).ok()) {
      return fmt::format("; move {} away to continue from {}", damaged, path);
    }
  }
  return "; move it away to start anew, or restore it from a copy";
}

}  // namespace

Result<std::string> save_checkpoint(const std::string& directory, const Snapshot& snapshot,
                                    int keep) {
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed) return io_error("create " + directory + ": " + failed.message());
  remove_stale_staging(directory);
  const std::string target =
      fs::path(directory) / fmt::format("{}{:08}", kStepPrefix, snapshot.step);
  {
    StagingFolder staging;
    STORMO_RETURN_IF_ERROR(staging.create(directory, std::to_string(snapshot.step)));
    STORMO_RETURN_IF_ERROR(write_folder(staging.path(), snapshot));
    STORMO_RETURN_IF_ERROR(staging.publish(target));
  }
  const Listing listing = list_checkpoints(directory);
  for (std::size_t i = static_cast<std::size_t>(std::max(1, keep)); i < listing.complete.size();
       ++i) {
    if (listing.complete[i].second != target) retire_folder(listing.complete[i].second);
  }
  return target;
}

Result<std::string> newest_checkpoint(const std::string& directory) {
  const Listing listing = list_checkpoints(directory);
  if (listing.complete.empty()) {
    return Status(Code::kNotFound,
                  fmt::format("no complete checkpoint in '{}'{}", directory,
                              listing.incomplete == 0
                                  ? ""
                                  : " (there are folders without manifest.json, which no finished "
                                    "save leaves behind)"));
  }
  const std::string& newest = listing.complete.front().second;
  const Result<Manifest> manifest = check_checkpoint(newest, false);
  if (manifest.ok()) return newest;
  return Status(manifest.status().code(), manifest.status().message() + remedy(listing, newest));
}

Result<Snapshot> load_checkpoint(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(Manifest manifest, check_checkpoint(path, true));
  for (const char* file : {kModelFile, kOptimizerFile}) {
    if (!manifest.files.contains(file)) {
      return Status(Code::kCorrupt, fmt::format("{} does not list {}", path, file));
    }
  }
  Snapshot s;
  STORMO_ASSIGN_OR_RETURN(s.model, read_safetensors(fs::path(path) / kModelFile));
  STORMO_ASSIGN_OR_RETURN(s.optimizer, read_safetensors(fs::path(path) / kOptimizerFile));
  if (weights_hash(s.model) != manifest.weights_hash) {
    return Status(Code::kCorrupt, path + ": the weights do not match the manifest's weights_hash");
  }
  s.step = manifest.step;
  s.samples = manifest.samples;
  s.name = std::move(manifest.name);
  s.recipe_json = std::move(manifest.recipe_json);
  return s;
}

Status probe_checkpoint_directory(const std::string& directory) {
  const std::string advice = "; choose another with checkpoint.directory=DIR";
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed) {
    return invalid_argument("cannot create the checkpoint directory '" + directory +
                            "': " + failed.message() + advice);
  }
  const fs::path path = fs::path(directory) / (".probe-" + random_suffix());
  FileWriter probe;
  Status written = probe.create(path);
  if (written.ok()) written = probe.write("probe\n");
  if (written.ok()) written = probe.finish().status();
  fs::remove(path, failed);
  if (written.ok()) return written;
  return invalid_argument("cannot write into the checkpoint directory '" + directory +
                          "': " + written.message() + advice);
}

}  // namespace stormo::train
