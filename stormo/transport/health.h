#pragma once

#include <atomic>
#include <mutex>

#include <stormo/base/status.h>

namespace stormo::transport {

/// What becomes of a rank whose process is stopped, by a signal or a debugger.
enum class OnStopped : bool {
  kEnd,  ///< it counts as dead after the time of the heartbeat, and is ended by SIGKILL
  kWait  ///< the others wait until it is continued or ends
};

/// Whether a group still works, and if not, the first cause of its failure; later causes are
/// ignored. Shared by all code of one process that waits for peers. Thread-safe.
class Health {
 public:
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// OK until failed; then the first cause.
  Status status() const {
    if (!failed()) return {};
    const std::lock_guard lock(mutex_);
    return cause_;
  }
  /// Records `cause` if it is the first; true when it was.
  bool fail(Status cause) {
    const std::lock_guard lock(mutex_);
    if (!cause_.ok()) return false;
    cause_ = std::move(cause);
    failed_.store(true, std::memory_order_release);
    return true;
  }

 private:
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  Status cause_;
};

}  // namespace stormo::transport
