#include <stormo/comm/operation_lane.h>

#include <fmt/format.h>

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
  std::uint32_t idle = 0;
  return state_.compare_exchange_strong(idle, kRunning, std::memory_order_acquire,
                                        std::memory_order_relaxed);
}

void OperationLane::leave() {
  if (state_.fetch_sub(kRunning, std::memory_order_acq_rel) == kRunning) return;
  // Something is queued. Its thread either sees the lane free or already sleeps: the lock decides.
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

Work OperationLane::submit(Body body) {
  auto operation = std::make_shared<PendingOperation>();
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(body), operation});
    state_.fetch_add(kOneQueued, std::memory_order_release);
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  }
  changed_.notify_all();
  return Work(std::move(operation));
}

void OperationLane::loop() {
  const auto free_to_run = [this] {
    const std::uint32_t state = state_.load(std::memory_order_acquire);
    return state >= kOneQueued && (state & kRunning) == 0;
  };
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || free_to_run(); });
    if (stopping_) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    // nobody else enters a lane with a queue
    state_.fetch_sub(kOneQueued - kRunning, std::memory_order_acq_rel);
    lock.unlock();
    Status outcome = item.body();
    // free for the next one before anybody learns that this one is complete
    state_.fetch_sub(kRunning, std::memory_order_release);
    item.operation->complete(std::move(outcome));
    lock.lock();
  }
}

Status finish_in_turn(Work work, std::string_view call, Deadline by,
                      const std::function<void(Status)>& fail) {
  static_cast<void>(work.wait(by));
  if (!work.test()) {
    fail({Code::kDeadlineExceeded, fmt::format("the deadline of {} passed", call)});
  }
  return work.wait();
}

}  // namespace stormo::comm
