#pragma once

#include <cstdint>
#include <string>

#include <stormo/base/status.h>

namespace stormo::checkpoint {

/// The symbolic link beside the checkpoints that names the newest one, for people and scripts.
inline constexpr const char* kLatest = "latest";

/// Where the checkpoint of `step` lies: directory/step-00000100.
std::string checkpoint_path(const std::string& directory, std::int64_t step);

/// The newest complete checkpoint under `directory`, found by its name; kNotFound when there is
/// none. When it is damaged, the failure names an older one that could be used instead: falling
/// back without a word would lose work.
Result<std::string> newest_checkpoint(const std::string& directory);

/// `path` itself when it is a checkpoint, else the newest one in that folder.
Result<std::string> find_checkpoint(const std::string& path);

/// Finds out before training whether `directory` can be written: creates it and writes a probe
/// file.
Status probe_checkpoint_directory(const std::string& directory);

/// Makes `latest` name the checkpoint at `path` by one rename. A file system without symbolic links
/// goes without: no reader of ours needs it.
void point_latest(const std::string& path);

/// Removes complete checkpoints beyond the newest `keep` (at least 1), never the one at `newest`.
void retire_old_checkpoints(const std::string& directory, int keep, const std::string& newest);

}  // namespace stormo::checkpoint
