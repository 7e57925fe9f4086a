#pragma once

#include <functional>
#include <memory>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::comm {

/// State of one pending operation, shared between its Work and the group's thread.
class PendingOperation;

/// Handle of an asynchronous operation. Move-only. Buffers stay borrowed until the operation is
/// complete. Destroying an incomplete Work does not block: the operation continues, and its buffers
/// stay borrowed.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<PendingOperation> operation);
  /// A Work that is already complete.
  static Work completed(Status outcome);

  /// Blocks, and returns the status of the operation; kDeadlineExceeded when `by` passes first (the
  /// operation is then still pending).
  Status wait(Deadline by = Deadline::never());
  /// True once complete; never blocks.
  bool test() const;
  /// Calls `f` once with the status: immediately if the operation is complete, else on a thread of
  /// the group, or of a message on one that waits for another message, before wait() returns and
  /// the next collective begins. `f` must not throw or block on this group; it may submit
  /// operations. Several functions are called in the order given.
  void then(std::function<void(const Status&)> f);

 private:
  std::shared_ptr<PendingOperation> operation_;
};

}  // namespace stormo::comm
