#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <stormo/comm/communicator.h>

namespace stormo::c10d {

/// The error that Python sees of a failed operation: torch.distributed.DistBackendError with
/// Stormo's first cause; ValueError for a wrong argument.
std::exception_ptr error_of(const Status& failure);

/// Called now and then by who waits for other ranks, and when a wait has failed; it may throw.
/// Python's binding looks for Ctrl-C there.
void set_interrupt_check(void (*check)());
/// Calls what was set.
void check_interrupt();
/// How often who waits calls it.
inline constexpr Duration kInterruptLook = std::chrono::milliseconds(200);

/// The profiler shows operations as "NAME:all_reduce"; at first it is "stormo". For tests of
/// PyTorch that look for Gloo's. Call it before the first operation.
void set_profiled_name(std::string name);

/// The way from operations to their group, which may be destroyed before them.
class GroupLink {
 public:
  explicit GroupLink(comm::Communicator& group) : group_(&group) {}
  /// Makes the group fail, if it is still there.
  void fail(Status cause);
  /// The same, as what has happened to this rank.
  void interrupt(const Status& cause);
  bool failed();
  void cut();

 private:
  std::recursive_mutex mutex_;  // what ends by a failure may call fail() again
  comm::Communicator* group_;
};

/// The Future of an operation that is not complete: its group.
using OpenFuture = std::shared_ptr<GroupLink>;

/// An operation in the records of others (flight_records.h). If it is destroyed before complete(),
/// the operation has failed.
class OperationRecord {
 public:
  virtual ~OperationRecord() = default;
  /// Of a message: `source` has sent it.
  virtual void complete(Rank source) = 0;
};

/// One operation of a StormoBackend. It consists of requests to the Communicator: those of a
/// blocking call run at once on the caller's thread, the others are submitted. It is complete when
/// all are, whether or not somebody still has the StormoWork.
class StormoWork final : public ::c10d::Work {
 public:
  struct Description {
    int rank = 0;
    ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
    const char* title = "";            ///< "all_reduce"; in the profiler "stormo:all_reduce"
    std::vector<at::Tensor> inputs{};  ///< also what has to live until it is complete
    std::vector<at::Tensor> results{};
    std::uint64_t sequence = 0;
    std::chrono::milliseconds timeout{};
    bool async = true;
    Rank peer = comm::kAnyRank;  ///< of a message
    int tag = 0;                 ///< of a message
    std::unique_ptr<OperationRecord> record{};
  };
  StormoWork(std::shared_ptr<GroupLink> link, Description description);

  /// One more request to the group. Its lists are only read during the call. `after` is called when
  /// it has succeeded, before the operation is complete, on any thread.
  void perform(comm::Communicator& group, const comm::Request& request,
               std::function<void()> after = {});
  /// Keeps a tensor alive until the operation is complete.
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }
  /// There are no more requests.
  void seal() { part_done({}); }
  /// Is called when all parts have succeeded, before the operation is complete, on any thread.
  void before_completion(std::function<void()> last) { last_ = std::move(last); }
  /// For steps that follow one another by themselves: the operation is complete only after as many
  /// calls of part_done().
  void expect_part() { open_parts_.fetch_add(1, std::memory_order_relaxed); }
  void part_done(const Status& outcome);
  /// Of a message from any source: who has sent it, once complete.
  Rank& source() { return source_; }

  /// At most `timeout`; kNoTimeout: the operation's own. When that passes, the group fails; another
  /// one says no more than that this call has ended.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  /// Its value are the results, as a list of tensors.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override { return source_; }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  /// Makes the group fail.
  void abort() override;

 private:
  void complete();
  void mark_future();
  [[noreturn]] void timed_out(std::chrono::milliseconds timeout, bool own);

  const std::shared_ptr<GroupLink> link_;
  const char* title_;
  std::vector<at::Tensor> kept_;
  std::vector<at::Tensor> results_;
  const std::uint64_t sequence_;
  const std::chrono::milliseconds timeout_;
  const bool async_;
  std::unique_ptr<OperationRecord> record_;
  Rank source_ = -1;
  std::vector<comm::Work> parts_;
  std::function<void()> last_;
  std::atomic<int> open_parts_{1};
  Status failure_;                                  // guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
  bool marked_ = false;                             // the future; guarded by mutex_
  std::shared_ptr<OpenFuture> open_;                // until it is marked; guarded by mutex_
};

}  // namespace stormo::c10d
