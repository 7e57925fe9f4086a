#include <stormo/checkpoint/file/staging.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string_view>
#include <utility>

#include <stormo/checkpoint/file/checked_file.h>

namespace stormo::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = ".staging-";

/// A descriptor that holds the folder's lock; none when the folder is gone or locked by another.
Descriptor lock_folder(const std::string& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder.valid()) return {};
  struct stat held {
  }, named{};
  // The name is compared after locking: the folder may have been removed in between.
  const bool mine = ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0 &&
                    ::fstat(folder.get(), &held) == 0 && ::lstat(path.c_str(), &named) == 0 &&
                    held.st_ino == named.st_ino;
  return mine ? std::move(folder) : Descriptor();
}

}  // namespace

std::string random_suffix() {
  std::random_device random;
  return to_hex((std::uint64_t{random()} << 32) | random());
}

StagingFolder::~StagingFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Status StagingFolder::create(const std::string& parent, const std::string& label) {
  // A run that tidies up may take the new folder for a dead one before it is locked: try again.
  for (int attempt = 0; attempt < 8; ++attempt) {
    const std::string path =
        fs::path(parent) / fmt::format("{}{}-{}", kPrefix, label, random_suffix());
    if (::mkdir(path.c_str(), 0777) != 0) return errno_error("create " + path);
    lock_ = lock_folder(path);
    if (lock_.valid()) {
      path_ = path;
      return ok_status();
    }
  }
  return io_error("cannot lock a folder in " + parent + "; does its file system have locks?");
}

Status StagingFolder::publish(const std::string& target) {
  STORMO_RETURN_IF_ERROR(sync_directory(path_));
  const std::string parent = fs::path(target).parent_path();
  if (::rename(path_.c_str(), target.c_str()) == 0) {
    path_.clear();
    return sync_directory(parent);
  }
  if (errno != ENOTEMPTY && errno != EEXIST) return errno_error("publish " + target);
  // The exchange keeps a whole checkpoint under the name at every moment; what was there comes back
  // as the staging folder, and goes with it.
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
    return errno_error("replace " + target);
  }
  return sync_directory(parent);
}

void remove_stale_staging(const std::string& parent) {
  std::error_code ignored;
  std::vector<std::pair<std::string, Descriptor>> stale;  // with their locks
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    Descriptor lock = lock_folder(entry.path());
    if (lock.valid()) stale.emplace_back(entry.path(), std::move(lock));
  }
  if (stale.empty() || !sync_directory(parent).ok()) return;
  for (const auto& [path, lock] : stale) fs::remove_all(path, ignored);
}

void retire_folders(const std::vector<std::string>& paths) {
  std::vector<std::string> renamed;
  for (const std::string& path : paths) {
    const std::string target =
        fs::path(path).parent_path() / fmt::format("{}old-{}", kPrefix, random_suffix());
    if (::rename(path.c_str(), target.c_str()) == 0) renamed.push_back(target);
  }
  if (renamed.empty() || !sync_directory(fs::path(renamed[0]).parent_path()).ok()) return;
  std::error_code ignored;
  for (const std::string& path : renamed) fs::remove_all(path, ignored);
}

}  // namespace stormo::checkpoint
