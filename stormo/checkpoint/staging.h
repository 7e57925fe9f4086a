#pragma once

#include <string>

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

/// Removes the staging folders of dead runs. Never fails: it is tidying.
void remove_stale_staging(const std::string& parent);

/// Removes a published folder so that no half of it is ever visible.
void retire_folder(const std::string& path);

/// 16 random hexadecimal digits.
std::string random_suffix();

}  // namespace stormo::checkpoint
