#include <stormo/launch/process/event_loop.h>

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>

namespace stormo::launch {
namespace {

/// The descriptor and the watch's number: an event of a watch that was forgotten in the same round
/// must not reach a new one that got the same descriptor.
std::uint64_t pack(int fd, std::uint64_t id) { return (id << 32) | static_cast<std::uint32_t>(fd); }

constexpr int kLongestMs = 3600 * 1000;

}  // namespace

EventLoop::EventLoop(Descriptor epoll, Descriptor wake)
    : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return errno_error("epoll");
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return errno_error("eventfd");
  std::unique_ptr<EventLoop> loop(new EventLoop(std::move(epoll), std::move(wake)));
  EventLoop* self = loop.get();
  STORMO_RETURN_IF_ERROR(self->watch_readable(self->wake_.get(), [self] { self->run_posted(); }));
  return loop;
}

Status EventLoop::add(int fd, std::uint32_t interest, Callback callback) {
  const Watch watch{next_id_++, interest, std::make_shared<Callback>(std::move(callback))};
  epoll_event event{};
  event.events = interest;
  event.data.u64 = pack(fd, watch.id);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_error("epoll");
  watches_[fd] = watch;
  return {};
}

Status EventLoop::watch_readable(int fd, Callback callback) {
  return add(fd, EPOLLIN, std::move(callback));
}

Status EventLoop::watch_writable(int fd, Callback callback) {
  return add(fd, EPOLLOUT, std::move(callback));
}

void EventLoop::forget(int fd) {
  if (watches_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::pause(int fd, bool paused) {
  const auto it = watches_.find(fd);
  if (it == watches_.end()) return;
  epoll_event event{};
  event.data.u64 = pack(fd, it->second.id);
  // A watch without interest would still be woken by a hang-up, again and again.
  if (paused) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  } else {
    event.events = it->second.interest;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
}

void EventLoop::post(Callback task) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const std::uint64_t one = 1;
  // Full only when a wake-up is already pending.
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
}

void EventLoop::run_posted() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof count);
  std::vector<Callback> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (const Callback& task : tasks) task();
}

Status EventLoop::run_once(Deadline by) {
  std::array<epoll_event, 64> events;
  const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                             transport::poll_timeout(RealClock().now(), by.when(), kLongestMs));
  if (n < 0) return errno == EINTR ? Status{} : errno_error("epoll");
  for (int i = 0; i < n; ++i) {
    const std::uint64_t packed = events[static_cast<std::size_t>(i)].data.u64;
    const int fd = static_cast<int>(packed & 0xffffffffu);
    const auto it = watches_.find(fd);
    if (it == watches_.end() || pack(fd, it->second.id) != packed) continue;
    const std::shared_ptr<Callback> callback = it->second.callback;
    (*callback)();
  }
  return {};
}

}  // namespace stormo::launch
