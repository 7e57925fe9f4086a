#include <stormo/c10d/blocking_call.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace stormo::c10d {
namespace {

std::atomic<std::thread::id> interruptible{};
std::atomic<void (*)()> before_each{nullptr};

/// What the interruptible thread waits for.
struct Waiting {
  std::mutex mutex;
  std::shared_ptr<GroupLink> group;  // null: no call runs
  std::uint64_t number = 0;
  std::vector<std::weak_ptr<OpenFuture>> futures;
};

Waiting& waiting() {
  static auto* const one = new Waiting;  // used until the very end
  return *one;
}

bool begins_to_wait() {
  if (interruptible.load(std::memory_order_relaxed) != std::this_thread::get_id()) return false;
  if (auto* const before = before_each.load(std::memory_order_relaxed)) before();
  return true;
}

}  // namespace

BlockingCall::BlockingCall(const std::shared_ptr<GroupLink>& group) : noted_(begins_to_wait()) {
  if (!noted_) return;
  const std::lock_guard lock(waiting().mutex);
  waiting().group = group;
  ++waiting().number;
}

BlockingCall::~BlockingCall() {
  if (!noted_) return;
  const std::lock_guard lock(waiting().mutex);
  waiting().group = nullptr;
}

void BlockingCall::allow_interrupts(void (*before)()) {
  before_each = before;
  interruptible = std::this_thread::get_id();
}

std::uint64_t BlockingCall::current() {
  const std::lock_guard lock(waiting().mutex);
  return waiting().group ? waiting().number : 0;
}

void BlockingCall::interrupt(std::uint64_t number, const Status& cause) {
  std::shared_ptr<GroupLink> group;
  {
    const std::lock_guard lock(waiting().mutex);
    if (waiting().number == number) group = waiting().group;
  }
  if (group) group->interrupt(cause);
}

void may_wait_for_future(std::weak_ptr<OpenFuture> future) {
  if (!begins_to_wait()) return;
  const std::lock_guard lock(waiting().mutex);
  std::erase_if(waiting().futures, [](const auto& f) { return f.expired(); });
  waiting().futures.push_back(std::move(future));
}

void interrupt_futures(const Status& cause) {
  std::vector<std::weak_ptr<OpenFuture>> futures;
  {
    const std::lock_guard lock(waiting().mutex);
    futures = std::exchange(waiting().futures, {});
  }
  for (const auto& future : futures) {
    if (const auto group = future.lock()) (*group)->interrupt(cause);
  }
}

}  // namespace stormo::c10d
