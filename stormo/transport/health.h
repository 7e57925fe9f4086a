#pragma once

#include <atomic>
#include <mutex>

#include <stormo/base/status.h>

namespace stormo::transport {

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
