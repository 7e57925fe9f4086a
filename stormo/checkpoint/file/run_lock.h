#pragma once

#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>

namespace stormo::checkpoint {

/// Locks a folder of checkpoints against a second run, until the object is destroyed or the process
/// and its forked children end. It leaves nothing in the folder. It uses flock(), which works
/// between the processes of one host, and between hosts only if the file system supports it; not on
/// NFS, whose folders cannot be locked.
class RunLock {
 public:
  /// Call once, for an existing folder. If another run has the lock, waits for it until `by`, then
  /// returns kInvalidArgument. OK, without a lock, if the file system has no locks.
  Status take(const std::string& directory, Deadline by);

 private:
  Descriptor folder_;
};

}  // namespace stormo::checkpoint
