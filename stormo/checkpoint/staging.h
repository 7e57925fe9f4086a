#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::checkpoint {

/// A folder under construction inside `parent`, named ".staging-<label>-<random>" and locked for as
/// long as this object lives: a folder that nobody has locked belongs to a dead run. What is not
/// published is removed.
class StagingFolder {
 public:
  StagingFolder() = default;
  ~StagingFolder();
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  Status create(const std::string& parent, const std::string& label);
  const std::string& path() const { return path_; }
  /// Makes the folder appear at `target` in one step, in place of a folder that may be there.
  Status publish(const std::string& target);

 private:
  std::string path_;
  int lock_ = -1;
};

// Both remove a folder's content only when the disk knows that the folder has another name: so no
// half of a checkpoint is ever visible. They never fail: it is tidying.

/// Removes the staging folders of dead runs.
void remove_stale_staging(const std::string& parent);
/// Removes published folders of one parent.
void retire_folders(const std::vector<std::string>& paths);

/// 16 random hexadecimal digits.
std::string random_suffix();

}  // namespace stormo::checkpoint
