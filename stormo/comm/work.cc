#include <stormo/base/wait_until.h>
#include <stormo/comm/pending_operation.h>

namespace stormo::comm {

Work::Work(std::shared_ptr<PendingOperation> operation) : operation_(std::move(operation)) {}

Work Work::completed(Status outcome) {
  auto operation = std::make_shared<PendingOperation>();
  operation->complete(std::move(outcome));
  return Work(std::move(operation));
}

Status Work::wait(Deadline by) {
  return operation_ ? operation_->wait(by) : invalid_argument("wait() on an empty Work");
}

void Work::then(std::function<void(const Status&)> f) {
  if (operation_) return operation_->then(std::move(f));
  f(invalid_argument("then() on an empty Work"));
}

bool Work::test() const { return operation_ == nullptr || operation_->done(); }

void PendingOperation::complete(Status outcome) {
  std::unique_lock lock(mutex_);
  outcome_ = std::move(outcome);                             // and changes no more
  for (std::size_t i = 0; i < continuations_.size(); ++i) {  // which may be given more meanwhile
    const auto f = std::move(continuations_[i]);
    lock.unlock();
    f(outcome_);
    lock.lock();
  }
  continuations_.clear();
  done_ = true;
  lock.unlock();
  changed_.notify_all();
}

void PendingOperation::then(std::function<void(const Status&)> f) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_) return continuations_.push_back(std::move(f));
  }
  f(outcome_);
}

bool PendingOperation::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

Status PendingOperation::wait(Deadline by) {
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return done_; };
  if (!wait_until(changed_, lock, by, is_done)) {
    return {Code::kDeadlineExceeded, "the operation is still pending"};
  }
  return outcome_;
}

}  // namespace stormo::comm
