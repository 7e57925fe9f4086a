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
  if (operation_ == nullptr) return invalid_argument("wait() on an empty Work");
  std::unique_lock lock(operation_->mutex_);
  const auto is_done = [this] { return operation_->done_; };
  if (Driver* const driver = operation_->driver_; driver != nullptr) {
    driver->enter();
    lock.unlock();
    driver->drive(operation_->id_, by);
    lock.lock();
  }
  if (!wait_until(operation_->changed_, lock, by, is_done)) {
    return {Code::kDeadlineExceeded, "the operation is still pending"};
  }
  return operation_->outcome_;
}

void Work::then(std::function<void(const Status&)> f) {
  if (operation_ == nullptr) return f(invalid_argument("then() on an empty Work"));
  {
    const std::lock_guard lock(operation_->mutex_);
    if (!operation_->done_) return operation_->continuations_.push_back(std::move(f));
  }
  f(operation_->outcome_);
}

bool Work::test() const {
  if (operation_ == nullptr) return true;
  const std::lock_guard lock(operation_->mutex_);
  return operation_->done_;
}

void PendingOperation::complete(Status outcome) {
  std::unique_lock lock(mutex_);
  driver_ = nullptr;
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

}  // namespace stormo::comm
