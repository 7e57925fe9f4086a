#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include <stormo/comm/work.h>

namespace stormo::comm {

/// Outcome of an operation that runs on another thread. Completed exactly once.
class PendingOperation {
 public:
  void complete(Status outcome);
  bool done() const;
  Status wait(Deadline by);
  void then(std::function<void(const Status&)> f);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Status outcome_;
  std::vector<std::function<void(const Status&)>> continuations_;
};

}  // namespace stormo::comm
