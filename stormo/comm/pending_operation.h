#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include <stormo/comm/work.h>

namespace stormo::comm {

/// Brings operations forward on the threads of callers that wait for them.
class Driver {
 public:
  /// A caller is about to call drive(): this lives until that has returned.
  virtual void enter() = 0;
  /// Returns when the operation `id` is complete, or at `by`.
  virtual void drive(std::uint64_t id, Deadline by) = 0;

 protected:
  ~Driver() = default;
};

/// Outcome of an operation that runs on another thread, for which its Work waits.
class PendingOperation {
 public:
  PendingOperation() = default;
  /// `id`: of the operation, at `driver`, which lives until complete() is called.
  PendingOperation(Driver& driver, std::uint64_t id) : driver_(&driver), id_(id) {}
  /// Once.
  void complete(Status outcome);

 private:
  friend class Work;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Status outcome_;
  std::vector<std::function<void(const Status&)>> continuations_;
  Driver* driver_ = nullptr;
  const std::uint64_t id_ = 0;
};

}  // namespace stormo::comm
