#include <stormo/checkpoint/folder.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/checkpoint/manifest.h>
#include <stormo/checkpoint/staging.h>

namespace stormo::checkpoint {
namespace {

namespace fs = std::filesystem;
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
    if (fs::exists(entry.path() / Manifest::kFile, ignored)) {
      listing.complete.emplace_back(*step, entry.path().string());
    } else {
      ++listing.incomplete;
    }
  }
  std::sort(listing.complete.begin(), listing.complete.end(), std::greater<>());
  return listing;
}

/// Where an older complete checkpoint helps, says so.
std::string remedy(const Listing& listing, const std::string& damaged) {
  for (const auto& [step, path] : listing.complete) {
    if (path != damaged && check_checkpoint(path, false).ok()) {
      return fmt::format("; move {} away to continue from {}", damaged, path);
    }
  }
  return "; move it away to start anew, or restore it from a copy";
}

}  // namespace

std::string checkpoint_path(const std::string& directory, std::int64_t step) {
  return fs::path(directory) / fmt::format("{}{:08}", kStepPrefix, step);
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

Result<std::string> find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(fs::path(path) / Manifest::kFile, ignored)) return path;
  return newest_checkpoint(path);
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

void point_latest(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  const fs::path fresh = folder / (".latest-" + random_suffix());
  std::error_code failed;
  fs::create_symlink(fs::path(path).filename(), fresh, failed);
  if (failed) return;
  fs::rename(fresh, folder / kLatest, failed);
  if (failed) fs::remove(fresh, failed);
}

void retire_old_checkpoints(const std::string& directory, int keep, const std::string& newest) {
  const Listing listing = list_checkpoints(directory);
  for (std::size_t i = static_cast<std::size_t>(std::max(1, keep)); i < listing.complete.size();
       ++i) {
    if (listing.complete[i].second != newest) retire_folder(listing.complete[i].second);
  }
}

}  // namespace stormo::checkpoint
