#pragma once

#include <cstdint>
#include <memory>

#include <stormo/c10d/work.h>

namespace stormo::c10d {

/// A call that waits for other ranks, while it runs on its caller's thread. Of one thread of the
/// process, Python's main thread, such calls can be interrupted.
class BlockingCall {
 public:
  explicit BlockingCall(const std::shared_ptr<GroupLink>& group);
  ~BlockingCall();
  BlockingCall(const BlockingCall&) = delete;

  /// Those of this thread can be interrupted from now on; `before` is called at the begin of each.
  static void allow_interrupts(void (*before)() = nullptr);
  /// The number of the one that runs now; 0: none.
  static std::uint64_t current();
  /// Ends it, if it still runs: its group fails with this cause.
  static void interrupt(std::uint64_t number, const Status& cause);

 private:
  const bool noted_;
};

/// Who asks for the Future of an operation may wait for it later, and does not say when.
void may_wait_for_future(std::weak_ptr<OpenFuture> future);
/// Ends the operations for whose Futures the interruptible thread has asked: their groups fail with
/// this cause.
void interrupt_futures(const Status& cause);

}  // namespace stormo::c10d
