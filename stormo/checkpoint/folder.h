#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/checkpoint/format/run_identity.h>

namespace stormo::checkpoint {

/// The symbolic link in the folder of checkpoints that points to the newest one, for people and
/// scripts.
inline constexpr const char* kLatest = "latest";
/// The symbolic link to the best checkpoint, if a run keeps one.
inline constexpr const char* kBest = "best";

/// A new run that replaces others.
RunIdentity new_run(std::vector<std::string> replaces = {});

/// The identity of a run that resumes from a checkpoint of `run`. If `run` has no id, it gets a new
/// one and replaces checkpoints without an id.
RunIdentity continued_run(const RunIdentity& run);

/// Path of the checkpoint of `step`: directory/step-00000100.
std::string checkpoint_path(const std::string& directory, std::int64_t step);

/// The newest complete checkpoint of the run in `directory`; kNotFound when there is none. If runs
/// replace each other, the last one is used; kInvalidArgument when there are several runs that do
/// not, because the choice would be ambiguous. When the newest checkpoint is damaged, the failure
/// names an older one that could be used; it is not used automatically, because work would be lost
/// silently.
Result<std::string> newest_checkpoint(const std::string& directory);

/// What commands offer for a folder that has checkpoints already.
inline constexpr std::string_view kAdvice =
    "go on from there with --resume, choose another folder with --checkpoint DIR, or replace what "
    "is there with --overwrite";

/// The identity of a new run in `directory`. kInvalidArgument when the folder has checkpoints,
/// unless `overwrite`: then the new run replaces them with its first complete checkpoint. Writes
/// nothing. `advice`: what the caller can do in place of it.
Result<RunIdentity> begin_run(const std::string& directory, bool overwrite,
                              std::string_view advice = kAdvice);

/// kInvalidArgument when `directory` has a checkpoint of another run than `run` and those that it
/// replaces: two runs write into one folder.
Status check_other_runs(const std::string& directory, const RunIdentity& run);

/// `path` itself when it is a checkpoint, else the newest one in that folder.
Result<std::string> find_checkpoint(const std::string& path);

/// The checkpoint to which `best` points in `directory`; kNotFound when there is none.
Result<std::string> best_checkpoint(const std::string& directory);

/// Checks before training that `directory` can be written: creates it and writes a test file.
Status probe_checkpoint_directory(const std::string& directory);

/// Makes `latest` point to the checkpoint at `path` by one rename, and blocks until this is on the
/// disk. Does nothing on a file system without symbolic links, or where something that is no link
/// has that name (link_warning()), because Stormo itself does not need the link.
Status point_latest(const std::string& path);

/// Empty, or why no link `latest` can be made in `directory`: a file or folder has its name.
std::string link_warning(const std::string& directory);

/// Makes `best` point to the checkpoint at `path` in the same way; kIo on a file system without
/// symbolic links, kInvalidArgument where something that is no link has that name.
Status point_best(const std::string& path);

/// Removes complete checkpoints of `run` except its newest `keep` (at least 1), the one at `newest`
/// and the one to which `best` points, which does not count; also removes those of runs that it
/// replaces. Checkpoints of other runs are kept.
void retire_old_checkpoints(const std::string& directory, int keep, const std::string& newest,
                            const RunIdentity& run);

}  // namespace stormo::checkpoint
