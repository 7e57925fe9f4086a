#include <stormo/comm/operation_lane.h>

namespace stormo::comm {

OperationLane::~OperationLane() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (Item& item : queue_) item.operation->complete({Code::kCancelled, "the group has ended"});
}

bool OperationLane::enter_if_idle() {
  const std::lock_guard lock(mutex_);
  if (busy_ || !queue_.empty()) return false;
  busy_ = true;
  return true;
}

void OperationLane::leave() {
  bool more = false;
  {
    const std::lock_guard lock(mutex_);
    busy_ = false;
    more = !queue_.empty();
  }
  if (more) changed_.notify_all();
}

Work OperationLane::submit(Body body) {
  auto operation = std::make_shared<PendingOperation>();
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(body), operation});
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  }
  changed_.notify_all();
  return Work(std::move(operation));
}

void OperationLane::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || (!busy_ && !queue_.empty()); });
    if (stopping_) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    Status outcome = item.body();
    // free for the next one before anybody learns that this one is complete
    lock.lock();
    busy_ = false;
    lock.unlock();
    item.operation->complete(std::move(outcome));
    lock.lock();
  }
}

}  // namespace stormo::comm
