#pragma once

#include <functional>
#include <memory>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::comm {

/// State of one pending operation, shared between its Work and the group's thread.
class PendingOperation;

/// Handle of a pending operation. Move-only. Buffers stay borrowed until it is complete; dropping
/// an incomplete Work does not block: the operation goes on, and so does the borrowing.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<PendingOperation> operation);
  /// Already complete.
  static Work completed(Status outcome);

  /// Outcome of the operation; kDeadlineExceeded when `by` passes first (it is still pending then).
  Status wait(Deadline by = Deadline::never());
  /// True once complete; never blocks.
  bool test() const;
  /// Calls `f` with the outcome, once: at once when complete, else on the group's thread, before
  /// wait() returns and the next operation begins. `f` must not throw, nor block on this group; it
  /// may submit more. When several are given they run in that order.
  void then(std::function<void(const Status&)> f);

 private:
  std::shared_ptr<PendingOperation> operation_;
};

}  // namespace stormo::comm
