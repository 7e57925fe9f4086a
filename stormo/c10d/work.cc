#include <stormo/c10d/work.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <stormo/c10d/blocking_call.h>
#include <stormo/c10d/options.h>
#include <stormo/comm/operation/outcome.h>

namespace stormo::c10d {
namespace {

std::atomic<void (*)()> interrupt_check{nullptr};

std::string& profiled_name() {
  static std::string name = "stormo";
  return name;
}

std::optional<std::vector<at::Tensor>> seen_by_profiler(const std::vector<at::Tensor>& inputs) {
  if (!at::hasCallbacks()) return std::nullopt;
  return inputs;
}

}  // namespace

std::exception_ptr error_of(const Status& failure) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  if (failure.code() == Code::kInvalidArgument) {
    return std::make_exception_ptr(c10::ValueError(here, "stormo: " + failure.message()));
  }
  const std::string text = failure.code() == Code::kDeadlineExceeded
                               ? "stormo: the timeout has passed: " + failure.message()
                               : "stormo: " + failure.to_string();
  return std::make_exception_ptr(c10::DistBackendError(here, text));
}

void set_profiled_name(std::string name) { profiled_name() = std::move(name); }

void set_interrupt_check(void (*check)()) { interrupt_check.store(check); }

void check_interrupt() {
  if (auto* const check = interrupt_check.load()) check();
}

void GroupLink::fail(Status cause) {
  const std::lock_guard lock(mutex_);
  if (group_ != nullptr) group_->fail(std::move(cause));
}

bool GroupLink::failed() {
  const std::lock_guard lock(mutex_);
  return group_ != nullptr && !group_->status().ok();
}

void GroupLink::interrupt(const Status& cause) {
  const std::lock_guard lock(mutex_);
  if (group_ != nullptr) group_->fail(cause.within("rank " + std::to_string(group_->rank())));
}

void GroupLink::cut() {
  const std::lock_guard lock(mutex_);
  group_ = nullptr;
}

StormoWork::StormoWork(std::shared_ptr<GroupLink> link, Description description)
    : Work(description.rank, description.type,
           at::hasCallbacks() ? (profiled_name() + ":" + description.title).c_str() : nullptr,
           seen_by_profiler(description.inputs)),
      link_(std::move(link)),
      title_(description.title),
      kept_(std::move(description.inputs)),
      results_(std::move(description.results)),
      sequence_(description.sequence),
      timeout_(description.timeout),
      async_(description.async),
      record_(std::move(description.record)) {}

void StormoWork::perform(comm::Communicator& group, const comm::Request& request,
                         std::function<void()> after) {
  if (!async_) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;  // the others of the group fail at the same request
    }
    expect_part();
    Status outcome = [&] {
      const BlockingCall call(link_);
      return group.run(request, Deadline::after(duration_of(timeout_)));
    }();
    if (outcome.ok() && after) outcome = comm::outcome_of([&] { return after(), Status(); });
    return part_done(outcome);
  }
  expect_part();
  comm::Work part = group.submit(request);
  auto self = c10::intrusive_ptr<StormoWork>::reclaim_copy(this);
  part.then([self = std::move(self), after = std::move(after)](const Status& outcome) {
    if (!outcome.ok() || !after) return self->part_done(outcome);
    self->part_done(comm::outcome_of([&] { return after(), Status(); }));
  });
  parts_.push_back(std::move(part));
}

void StormoWork::part_done(const Status& outcome) {
  if (!outcome.ok()) {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = outcome;
  }
  if (open_parts_.fetch_sub(1, std::memory_order_acq_rel) == 1) complete();
}

void StormoWork::complete() {
  if (last_ && failure_.ok()) failure_ = comm::outcome_of([&] { return last_(), Status(); });
  last_ = nullptr;
  kept_.clear();
  if (record_ && failure_.ok()) record_->complete(source_);
  record_ = nullptr;
  finish(failure_.ok() ? nullptr : error_of(failure_));
  mark_future();
}

c10::intrusive_ptr<c10::ivalue::Future> StormoWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::weak_ptr<OpenFuture> open;
  {
    const std::lock_guard lock(mutex_);
    if (!future_) {
      future_ =
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      open_ = std::make_shared<OpenFuture>(link_);
    }
    future = future_;
    open = open_;
  }
  if (isCompleted()) {
    mark_future();
  } else {
    may_wait_for_future(std::move(open));
  }
  return future;
}

/// Once. What others have added to the future runs under no lock.
void StormoWork::mark_future() {
  {
    const std::lock_guard lock(mutex_);
    if (!future_ || marked_) return;
    marked_ = true;
    open_ = nullptr;
  }
  if (exception_) {
    future_->setError(exception_);
  } else {
    future_->markCompleted(c10::IValue(results_));
  }
}

bool StormoWork::wait(std::chrono::milliseconds timeout) {
  const bool own = timeout <= kNoTimeout;
  const std::chrono::milliseconds most = own ? timeout_ : timeout;
  const Deadline by = Deadline::after(duration_of(most));
  for (comm::Work& part : parts_) {
    while (!part.test()) {
      static_cast<void>(
          part.wait(Deadline::at(std::min(by.when(), Deadline::after(kInterruptLook).when()))));
      if (part.test()) break;
      check_interrupt();
      if (by.expired()) timed_out(most, own);
    }
  }
  std::unique_lock lock(mutex_);
  while (!cv_.wait_for(lock, kInterruptLook, [&] { return completed_; })) {
    lock.unlock();
    check_interrupt();
    if (by.expired()) timed_out(most, own);
    lock.lock();
  }
  if (!exception_) return true;
  lock.unlock();
  check_interrupt();  // the interrupt may be why
  std::rethrow_exception(exception_);
}

void StormoWork::timed_out(std::chrono::milliseconds timeout, bool own) {
  Status late{Code::kDeadlineExceeded,
              fmt::format("{}: not complete after {} ms", title_, timeout.count())};
  if (own) link_->fail(late);
  std::rethrow_exception(error_of(late));
}

std::vector<at::Tensor> StormoWork::result() {
  TORCH_CHECK(isCompleted(),
              "Work needs to be completed before calling result(). "
              "Should call wait() before result().");
  return results_;
}

void StormoWork::abort() { link_->fail({Code::kCancelled, fmt::format("{} was aborted", title_)}); }

}  // namespace stormo::c10d
