#include <stormo/transport/call/loop_thread.h>

#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <utility>

namespace stormo::transport {

LoopThread::LoopThread() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!fd_.valid()) status_ = errno_error("eventfd");
}

void LoopThread::start(std::function<void()> turn) {
  thread_ = std::thread([this, turn = std::move(turn)] {
    while (!is_stopping()) turn();
  });
}

void LoopThread::stop() {
  is_stopping_.store(true, std::memory_order_release);
  wake();
  if (thread_.joinable()) thread_.join();
}

void LoopThread::wake() const { (void)::eventfd_write(fd_.get(), 1); }

short LoopThread::wait(int fd, short events, TimePoint until, int cap_ms) const {
  std::array<pollfd, 2> fds{pollfd{fd_.get(), POLLIN, 0}, pollfd{fd, events, 0}};
  const int timeout = poll_timeout(std::chrono::steady_clock::now(), until, cap_ms);
  (void)::poll(fds.data(), fds.size(), timeout);
  eventfd_t wakes = 0;
  if (fds[0].revents != 0) (void)::eventfd_read(fd_.get(), &wakes);
  return fds[1].revents;
}

}  // namespace stormo::transport
