#include <stormo/checkpoint/folder.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/text.h>
#include <stormo/checkpoint/file/staging.h>
#include <stormo/checkpoint/format/manifest.h>

namespace stormo::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kStepPrefix = "step-";

std::optional<std::int64_t> step_of(const std::string& folder_name) {
  if (!folder_name.starts_with(kStepPrefix)) return std::nullopt;
  const auto step = number_in<std::int64_t>(folder_name.substr(kStepPrefix.size()));
  return step && *step >= 0 ? step : std::nullopt;
}

/// A folder named like a checkpoint that has a manifest.
struct Found {
  std::int64_t step = 0;
  std::string path;
  Result<RunIdentity> run;  ///< a failure: unreadable, so of nobody knows which run
};

/// Newest first, and how many such folders have no manifest.
struct Listing {
  std::vector<Found> complete;
  int incomplete = 0;
};

Listing list_checkpoints(const std::string& directory) {
  Listing listing;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const auto step = step_of(entry.path().filename());
    if (!step || !entry.is_directory(ignored)) continue;
    const fs::path manifest = entry.path() / Manifest::kFile;
    if (fs::exists(manifest, ignored)) {
      listing.complete.push_back({*step, entry.path().string(), read_run_identity(manifest)});
    } else {
      ++listing.incomplete;
    }
  }
  std::sort(listing.complete.begin(), listing.complete.end(),
            [](const Found& a, const Found& b) { return a.step > b.step; });
  return listing;
}

bool replaces(const RunIdentity& run, const std::string& id) {
  return run.id != id &&
         std::find(run.replaces.begin(), run.replaces.end(), id) != run.replaces.end();
}

/// Those of runs that no other one in the folder replaces, and those that cannot be read.
std::vector<Found> current(const std::vector<Found>& all) {
  std::vector<Found> left;
  for (const Found& f : all) {
    const bool replaced =
        f.run.ok() && std::any_of(all.begin(), all.end(), [&](const Found& other) {
          return other.run.ok() && replaces(*other.run, f.run->id);
        });
    if (!replaced) left.push_back(f);
  }
  return left;
}

std::string name_of(const RunIdentity& run) {
  return run.id.empty() ? "a run without identity" : "run " + run.id;
}

/// kInvalidArgument when they are of more than one run.
Status check_one_run(const std::string& directory, const std::vector<Found>& found) {
  std::map<std::string, std::string> runs;  // the newest of each
  for (const Found& f : found) {
    if (f.run.ok()) {
      runs.emplace(f.run->id,
                   fmt::format("{} of {}", fs::path(f.path).filename().string(), name_of(*f.run)));
    }
  }
  if (runs.size() < 2) return ok_status();
  std::string all;
  for (const auto& [id, text] : runs) all += (all.empty() ? "" : ", ") + text;
  return invalid_argument(fmt::format(
      "'{}' holds checkpoints of {} runs: {}; move those of all but one to another folder",
      directory, runs.size(), all));
}

/// Where an older complete checkpoint helps, says so.
std::string remedy(const std::vector<Found>& found, const std::string& damaged) {
  for (const Found& f : found) {
    if (f.path != damaged && check_checkpoint(f.path, false).ok()) {
      return fmt::format("; move {} away to continue from {}", damaged, f.path);
    }
  }
  return "; move it away to start anew, or restore it from a copy";
}

/// Whether something else than a link has the name of one.
bool is_taken(const fs::path& link) {
  std::error_code absent;
  const fs::file_status there = fs::symlink_status(link, absent);
  return fs::exists(there) && !fs::is_symlink(there);
}

std::string taken_text(const fs::path& link) {
  return fmt::format("{} is a {}, not a link", link.string(),
                     fs::is_directory(link) ? "folder" : "file");
}

/// Makes the link `name` beside the checkpoint at `path` name it; `possible` becomes false where
/// the file system has no symbolic links, or something else has that name.
Status point_link(const std::string& path, const char* name, bool& possible) {
  const fs::path folder = fs::path(path).parent_path();
  const fs::path target = fs::path(path).filename(), link = folder / name;
  if (is_taken(link)) {
    possible = false;
    return invalid_argument(taken_text(link) + "; move it away");
  }
  const fs::path fresh = folder / fmt::format(".{}-new", name);
  ::unlink(fresh.c_str());  // what a killed run has left
  if (::symlink(target.c_str(), fresh.c_str()) != 0) {
    possible = errno != EPERM;  // what file systems without symbolic links say
    return errno_error("create " + fresh.string());
  }
  if (::rename(fresh.c_str(), link.c_str()) != 0) {
    const Status failure = errno_error("point " + link.string() + " to " + target.string());
    ::unlink(fresh.c_str());
    return failure;
  }
  return sync_directory(folder);
}

/// The checkpoint that the link `name` names; empty when it names none beside it.
fs::path named_by(const std::string& directory, const char* name) {
  std::error_code failed;
  const fs::path target = fs::read_symlink(fs::path(directory) / name, failed);
  const bool beside = !failed && step_of(target.string()).has_value();
  return beside ? fs::path(directory) / target : fs::path();
}

}  // namespace

RunIdentity new_run(std::vector<std::string> replaces) {
  return {random_suffix(), std::move(replaces)};
}

RunIdentity continued_run(const RunIdentity& run) { return run.id.empty() ? new_run({""}) : run; }

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
  const std::vector<Found> found = current(listing.complete);
  if (found.empty()) return Status(Code::kCorrupt, directory + ": its runs replace each other");
  STORMO_RETURN_IF_ERROR(check_one_run(directory, found));
  const std::string& newest = found.front().path;
  const Result<Manifest> manifest = check_checkpoint(newest, false);
  if (manifest.ok()) return newest;
  return Status(manifest.status().code(), manifest.status().message() + remedy(found, newest));
}

Result<RunIdentity> begin_run(const std::string& directory, bool overwrite,
                              std::string_view advice) {
  const Listing listing = list_checkpoints(directory);
  std::vector<std::string> older;
  for (const Found& f : listing.complete) {
    if (!f.run.ok()) {
      return invalid_argument(f.run.status().message() +
                              ": nobody can say whose checkpoint this is; move it away, or choose "
                              "another folder");
    }
    if (std::find(older.begin(), older.end(), f.run->id) == older.end()) {
      older.push_back(f.run->id);
    }
  }
  if (overwrite) return new_run(std::move(older));
  if (listing.complete.empty() && listing.incomplete == 0) return new_run();
  const std::string what = listing.complete.empty()
                               ? "folders named like checkpoints"
                               : "checkpoints already, the newest " + listing.complete[0].path;
  return invalid_argument(fmt::format("'{}' holds {}; {}", directory, what, advice));
}

Status check_other_runs(const std::string& directory, const RunIdentity& run) {
  for (const Found& f : list_checkpoints(directory).complete) {
    if (!f.run.ok() || f.run->id == run.id || replaces(run, f.run->id)) continue;
    return invalid_argument(
        fmt::format("{} belongs to {}, this is {}: two runs write into one folder; give each its "
                    "own",
                    f.path, name_of(*f.run), name_of(run)));
  }
  return ok_status();
}

Result<std::string> find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(fs::path(path) / Manifest::kFile, ignored)) return path;
  return newest_checkpoint(path);
}

Status probe_checkpoint_directory(const std::string& directory) {
  const std::string advice = "; choose another with checkpoint.directory=DIR";
  const Status created = create_directories(directory);
  if (!created.ok()) {
    return invalid_argument("cannot create the checkpoint directory '" + directory +
                            "': " + created.message() + advice);
  }
  const fs::path path = fs::path(directory) / (".probe-" + random_suffix());
  FileWriter probe;
  Status written = probe.create(path);
  if (written.ok()) written = probe.write("probe\n");
  if (written.ok()) written = probe.finish().status();
  ::unlink(path.c_str());
  if (written.ok()) return written;
  return invalid_argument("cannot write into the checkpoint directory '" + directory +
                          "': " + written.message() + advice);
}

std::string link_warning(const std::string& directory) {
  const fs::path link = fs::path(directory) / kLatest;
  if (!is_taken(link)) return "";
  return taken_text(link) +
         ": nothing will point to the newest checkpoint (its name tells it, too); move it away";
}

Status point_latest(const std::string& path) {
  bool possible = true;
  const Status done = point_link(path, kLatest, possible);
  return possible ? done : ok_status();
}

Status point_best(const std::string& path) {
  bool possible = true;
  return point_link(path, kBest, possible);
}

Result<std::string> best_checkpoint(const std::string& directory) {
  const fs::path path = named_by(directory, kBest);
  std::error_code ignored;
  if (!path.empty() && fs::exists(path / Manifest::kFile, ignored)) return path.string();
  return Status(Code::kNotFound,
                fmt::format("no best checkpoint in '{}'; a run whose recipe says checkpoint.best = "
                            "\"loss\" or \"accuracy\" keeps one",
                            directory));
}

void retire_old_checkpoints(const std::string& directory, int keep, const std::string& newest,
                            const RunIdentity& run) {
  int kept = 0;
  const std::string best = named_by(directory, kBest);
  std::vector<std::string> retired;
  for (const Found& f : list_checkpoints(directory).complete) {
    if (!f.run.ok() || f.path == newest) continue;
    if (f.run->id == run.id && f.path == best) continue;
    const bool old = f.run->id == run.id && ++kept >= std::max(1, keep);
    if (old || replaces(run, f.run->id)) retired.push_back(f.path);
  }
  retire_folders(retired);
}

}  // namespace stormo::checkpoint
