#include <stormo/comm/operation/operation_lane.h>

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

namespace stormo::comm {
namespace {

/// sched_setattr(2): the C library has no declaration, and the kernel's clashes with it.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = SCHED_OTHER;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  ///< of the normal policy: how long a turn is
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

/// Asks for short turns on a core, often: operations mostly wait for others, next to threads that
/// compute without end, and a wake-up that is late by their turn (3 ms) leaves the network idle.
/// Linux 6.12 and newer; older ones take no notice. Who has chosen another policy keeps it.
void take_short_turns() {
  if (::sched_getscheduler(0) != SCHED_OTHER) return;
  SchedulingAttributes wanted;
  wanted.nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
  wanted.runtime_ns = 100'000;
  static_cast<void>(::syscall(SYS_sched_setattr, 0, &wanted, 0u));
}

Status cancelled() { return {Code::kCancelled, "the group has ended"}; }

constexpr Duration kIdleLook = std::chrono::milliseconds(1);

/// The lane at the end of whose operation this thread calls functions.
thread_local const OperationLane* ending = nullptr;

}  // namespace

OperationLane::~OperationLane() {
  if (!process_.is_here()) {
    // nobody would ever leave the parent's waits: kept for good, and reachable for leak checkers
    static auto* const kept = new std::vector<std::unique_ptr<Queue>>;
    kept->push_back(std::move(queue_));
    return;
  }
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;
  }
  queue_->changed.notify_all();
  for (std::thread& t : queue_->threads) t.join();
  cancel_pending();
}

bool OperationLane::await_idle(Deadline by) const {
  while (!is_idle()) {
    if (by.expired()) return false;
    std::this_thread::sleep_for(kIdleLook);
  }
  return true;
}

bool OperationLane::is_idle() const {
  const std::lock_guard lock(queue_->mutex);
  const auto num_busy = static_cast<int>(queue_->threads.size()) - queue_->num_free;
  return state_.load(std::memory_order_acquire) == 0 && num_busy == (ending == this ? 1 : 0);
}

/// Functions of the user are called, which may submit.
void OperationLane::cancel_pending() {
  std::deque<Item> items;
  {
    const std::lock_guard lock(queue_->mutex);
    items.swap(queue_->items);
    state_.fetch_sub(kOneQueued * static_cast<std::uint32_t>(items.size()),
                     std::memory_order_acq_rel);
  }
  for (Item& item : items) item.operation->complete(cancelled());
}

// It either sees the lane free or already sleeps: the lock decides.
void OperationLane::wake_thread() {
  { const std::lock_guard lock(queue_->mutex); }
  queue_->changed.notify_one();
}

Work OperationLane::submit(Body body) {
  auto operation = std::make_shared<PendingOperation>();
  {
    const std::lock_guard lock(queue_->mutex);
    if (queue_->stopping) return Work::completed(cancelled());
    queue_->items.push_back({std::move(body), operation});
    state_.fetch_add(kOneQueued, std::memory_order_release);
    if (queue_->threads.empty() || (ending == this && queue_->num_free == 0)) start_thread();
  }
  queue_->changed.notify_one();
  return Work(std::move(operation));
}

/// Under the lock.
void OperationLane::start_thread() {
  queue_->threads.emplace_back([this] {
    take_short_turns();
    loop();
  });
  ++queue_->num_free;
}

void OperationLane::loop() {
  const auto free_to_run = [this] {
    const std::uint32_t state = state_.load(std::memory_order_acquire);
    return state >= kOneQueued && (state & kRunning) == 0;
  };
  std::unique_lock lock(queue_->mutex);
  for (;;) {
    queue_->changed.wait(lock, [&] { return queue_->stopping || free_to_run(); });
    if (queue_->stopping) return;
    Item item = std::move(queue_->items.front());
    queue_->items.pop_front();
    // nobody else enters a lane with a queue
    state_.fetch_sub(kOneQueued - kRunning, std::memory_order_acq_rel);
    lock.unlock();
    Status outcome = outcome_of(item.body);
    // free for the next one before anybody learns that this one is complete
    state_.fetch_sub(kRunning, std::memory_order_release);
    lock.lock();
    --queue_->num_free;
    lock.unlock();
    ending = this;
    item.operation->complete(std::move(outcome));
    item = {};  // what it has captured is the user's: no lock is held
    ending = nullptr;
    lock.lock();
    ++queue_->num_free;
  }
}

OwnedRequest::OwnedRequest(const Request& r)
    : in_(r.in.begin(), r.in.end()),
      out_(r.out.begin(), r.out.end()),
      counts_(r.counts.begin(), r.counts.end()),
      out_counts_(r.out_counts.begin(), r.out_counts.end()),
      algorithm_(r.algorithm),
      request_(r) {}

Status finish_in_turn(Work work, std::string_view call, Deadline by,
                      const std::function<void(Status)>& fail) {
  static_cast<void>(work.wait(by));
  if (!work.test()) {
    fail({Code::kDeadlineExceeded, fmt::format("the deadline of {} passed", call)});
  }
  return work.wait();
}

}  // namespace stormo::comm
