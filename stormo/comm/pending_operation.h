#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include <stormo/comm/work.h>

namespace stormo::comm {

/// Outcome of an operation that runs on another thread, for which its Work waits.
class PendingOperation {
 public:
  /// Once.
  void complete(Status outcome);

 private:
  friend class Work;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Status outcome_;
  std::vector<std::function<void(const Status&)>> continuations_;
};

}  // namespace stormo::comm
