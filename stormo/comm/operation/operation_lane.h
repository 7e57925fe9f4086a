#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <stormo/base/own_process.h>
#include <stormo/comm/operation/outcome.h>
#include <stormo/comm/pending_operation.h>
#include <stormo/comm/request.h>

namespace stormo::comm {

/// Runs operations one at a time, in the order submitted. They run on the caller's thread when
/// nothing is pending and the call is blocking, else on a thread of the lane, which is started when
/// first needed. An exception of an operation becomes its status. A function that is called at the
/// end of an operation may submit others and wait for them: another thread runs those.
class OperationLane {
 public:
  using Body = std::function<Status()>;
  OperationLane() = default;
  OperationLane(const OperationLane&) = delete;
  /// Ends the thread after the current operation; pending operations complete with
  /// `Code::kCancelled`. Does nothing in a forked child, which does not have this thread.
  ~OperationLane();

  Work submit(Body body);
  /// Waits until nothing runs or is pending, and the functions that are called at the end of
  /// operations have returned, but for one that calls this; at most until `by`. Whether that is so.
  bool await_idle(Deadline by) const;
  /// Operations that have not begun complete with `Code::kCancelled`.
  void cancel_pending();
  /// Runs `body` on the caller's thread if nothing is running or pending; else returns nullopt.
  template <class F>
  std::optional<Status> run_if_idle(F&& body) {
    std::uint32_t idle = 0;
    if (!state_.compare_exchange_strong(idle, kRunning, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
      return std::nullopt;
    }
    Status outcome = outcome_of(body);
    if (state_.fetch_sub(kRunning, std::memory_order_acq_rel) != kRunning) wake_thread();
    return outcome;
  }

 private:
  struct Item {
    Body body;
    std::shared_ptr<PendingOperation> operation;
  };
  /// What the lane's threads share with those who submit.
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item> items;
    bool stopping = false;
    std::vector<std::thread> threads;  // one, unless functions of operations have submitted others
    int num_free = 0;                  // threads that are in no such function
  };
  bool is_idle() const;
  void start_thread();
  void wake_thread();
  void loop();

  // Who runs and what waits, in one word, so that a caller who finds the lane idle needs no lock:
  // bit 0 is set while an operation runs, the rest counts the queue.
  static constexpr std::uint32_t kRunning = 1;
  static constexpr std::uint32_t kOneQueued = 2;
  std::atomic<std::uint32_t> state_{0};

  const OwnProcess process_;
  std::unique_ptr<Queue> queue_ = std::make_unique<Queue>();
};

/// A copy of a request that may outlive it: owns its lists (not the memory of buffers).
class OwnedRequest {
 public:
  explicit OwnedRequest(const Request& r);
  Request get() const {
    Request r = request_;
    r.in = in_;
    r.out = out_;
    r.counts = counts_;
    r.out_counts = out_counts_;
    r.algorithm = algorithm_;
    return r;
  }

 private:
  std::vector<Buffer> in_;
  std::vector<Buffer> out_;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> out_counts_;
  std::string algorithm_;
  Request request_;
};

/// Waits for a blocking call that was queued behind other operations. If `by` passes first, calls
/// `fail`, which must make the group fail with its argument, so that all pending operations end.
/// When this returns, the caller's buffers are not used any more. `call`: name of the call, for the
/// message.
Status finish_in_turn(Work work, std::string_view call, Deadline by,
                      const std::function<void(Status)>& fail);

}  // namespace stormo::comm
