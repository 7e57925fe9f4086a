#pragma once

#include <string>
#include <vector>

#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>

namespace stormo::checkpoint {

/// A temporary folder inside `parent`, named ".staging-<label>-<random>", in which a checkpoint is
/// written. It is locked while this object lives, so a folder without a lock belongs to a dead run.
/// The destructor removes it unless it was published.
class StagingFolder {
 public:
  StagingFolder() = default;
  ~StagingFolder();
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  Status create(const std::string& parent, const std::string& label);
  const std::string& path() const { return path_; }
  /// Renames the folder to `target` atomically, replacing a folder of that name.
  Status publish(const std::string& target);

 private:
  std::string path_;
  Descriptor lock_;
};

// Both functions first rename a folder, sync this to disk, and then remove its content, so that an
// incomplete checkpoint is never visible. Failures are ignored.

/// Removes the staging folders of dead runs.
void remove_stale_staging(const std::string& parent);
/// Removes published folders of one parent.
void retire_folders(const std::vector<std::string>& paths);

/// 16 random hexadecimal digits.
std::string random_suffix();

}  // namespace stormo::checkpoint
