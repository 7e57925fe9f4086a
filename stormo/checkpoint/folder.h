#pragma once

#include <cstdint>
#include <string>

#include <stormo/base/status.h>
#include <stormo/checkpoint/run_identity.h>

namespace stormo::checkpoint {

/// The symbolic link beside the checkpoints that names the newest one, for people and scripts.
inline constexpr const char* kLatest = "latest";
/// The one that names the best, where a run keeps one.
inline constexpr const char* kBest = "best";

/// Where the checkpoint of `step` lies: directory/step-00000100.
std::string checkpoint_path(const std::string& directory, std::int64_t step);

/// The newest complete checkpoint of the run in `directory`; kNotFound when there is none. Of runs
/// that replace each other the last one counts; kInvalidArgument when there are several that do
/// not: nobody could say which one is meant. When the newest is damaged, the failure names an older
/// one that could be used instead: falling back without a word would lose work.
Result<std::string> newest_checkpoint(const std::string& directory);

/// The identity of a run that begins in `directory`. kInvalidArgument when that holds checkpoints,
/// unless `overwrite`: then the new run replaces them with its first complete checkpoint. Writes
/// nothing.
Result<RunIdentity> begin_run(const std::string& directory, bool overwrite);

/// kInvalidArgument when `directory` has a checkpoint of another run than `run` and those that it
/// replaces: two runs write into one folder.
Status check_other_runs(const std::string& directory, const RunIdentity& run);

/// `path` itself when it is a checkpoint, else the newest one in that folder.
Result<std::string> find_checkpoint(const std::string& path);

/// The checkpoint that `best` names in `directory`; kNotFound when there is none.
Result<std::string> best_checkpoint(const std::string& directory);

/// Finds out before training whether `directory` can be written: creates it and writes a probe
/// file.
Status probe_checkpoint_directory(const std::string& directory);

/// Makes `latest` name the checkpoint at `path` by one rename, and waits until the disk has it. A
/// file system without symbolic links goes without: no reader of ours needs it.
Status point_latest(const std::string& path);

/// Makes `best` name the checkpoint at `path`, likewise; kIo where there are no symbolic links.
Status point_best(const std::string& path);

/// Removes complete checkpoints of `run` beyond its newest `keep` (at least 1), never the one at
/// `newest` and the one that `best` names, which does not count; and those of runs that it
/// replaces. Others stay, whatever their step.
void retire_old_checkpoints(const std::string& directory, int keep, const std::string& newest,
                            const RunIdentity& run);

}  // namespace stormo::checkpoint
