#pragma once

#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::checkpoint {

/// Keeps a second run out of a folder of checkpoints, until it is destroyed or the process and the
/// children that it has forked end. It leaves nothing in the folder. Its reach is that of flock():
/// the processes of one host, and those of others where the file system tells them; none on NFS,
/// whose folders cannot be locked.
class RunLock {
 public:
  RunLock() = default;
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Call once, for a folder that exists. Waits until `by` for a run that is about to end;
  /// kInvalidArgument when it still has the lock. OK, without a lock, where there are none.
  Status take(const std::string& directory, Deadline by);

 private:
  int fd_ = -1;
};

}  // namespace stormo::checkpoint
