#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::server {

/// One thing that a worker did with a shard. Together with seed and recipe, the events of all
/// workers say how a run went: gradients can be computed again.
struct ShardEvent {
  enum class Kind : std::uint32_t { kPush, kLeave, kJoin, kRead };
  /// Number of the commit that a push, leave or join made; of the one that a read has seen. Events
  /// of a shard are in this order, reads last.
  std::uint64_t commit = 0;
  Kind kind = Kind::kRead;
  std::uint32_t shard = 0;
  std::uint64_t step = 0;  ///< of the worker, from 0
  /// On the host's steady clock: of a push when it began, of others when they had ended.
  std::int64_t at_ns = 0;
  bool operator==(const ShardEvent&) const = default;
};

/// With what the checks of a worker's events begin; `run`: the same for all workers.
std::uint64_t record_origin(std::uint64_t run, int worker);

/// The file of a worker's events in the folder of a record.
std::string record_path(const std::string& directory, int worker);

/// Writes the events of one worker to a file, in their order, each with a check that depends on all
/// before it.
class ShardRecorder {
 public:
  /// Creates the file; kIo if that is not possible. `origin`: see record_origin().
  static Result<ShardRecorder> create(const std::string& path, std::uint64_t origin);
  void add(const ShardEvent& event);
  /// Writes what is buffered. kIo when a write has failed.
  Status flush();

 private:
  ShardRecorder(std::string path, std::ofstream file, std::uint64_t check)
      : path_(std::move(path)), file_(std::move(file)), check_(check) {}
  std::string path_;
  std::ofstream file_;
  std::uint64_t check_;  // of the last event
};

/// The events of a file. A last event that is not complete, of a run that was killed, is left out.
/// kCorrupt for another file, for one of another origin, and where bytes have changed; kIo if it
/// cannot be read.
Result<std::vector<ShardEvent>> read_shard_record(const std::string& path, std::uint64_t origin);

}  // namespace stormo::server
