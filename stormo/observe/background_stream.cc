#include <stormo/observe/background_stream.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <stormo/base/wait_until.h>

namespace stormo::observe {
namespace {

/// A pipe that poll() calls writable takes this much without blocking (PIPE_BUF).
constexpr std::size_t kAtOnce = 4096;

}  // namespace

BackgroundStream::BackgroundStream(int fd, OnLoss on_loss)
    : std::ostream(static_cast<std::streambuf*>(this)),
      fd_(fd),
      on_loss_(std::move(on_loss)),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { write_all(); }) {}

BackgroundStream::~BackgroundStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_, &one, sizeof one);
  thread_.join();
  ::close(wake_);
}

void BackgroundStream::append(std::string_view bytes) {
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    full = kept_.size() - done_ + bytes.size() > kMostKept;
    if (!full && !closed_) kept_.append(bytes);
  }
  if (full) return lose("its reader does not read");
  changed_.notify_all();
}

int BackgroundStream::overflow(int c) {
  using Traits = std::char_traits<char>;
  const char byte = Traits::to_char_type(c);
  if (!Traits::eq_int_type(c, Traits::eof())) append({&byte, 1});
  return Traits::not_eof(c);
}

std::streamsize BackgroundStream::xsputn(const char* bytes, std::streamsize size) {
  append({bytes, static_cast<std::size_t>(size)});
  return size;
}

bool BackgroundStream::finish(Deadline by) {
  std::unique_lock lock(mutex_);
  const auto written = [this] { return kept_.empty(); };
  if (!wait_until(changed_, lock, by, written)) return false;
  return !lost_;
}

void BackgroundStream::lose(std::string_view reason) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(lost_, true)) return;
  }
  if (on_loss_) on_loss_(reason);
}

void BackgroundStream::write_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !kept_.empty(); });
    if (stop_) return;
    lock.unlock();
    const bool more = write_some();
    lock.lock();
    if (!more) return;
  }
}

/// Waits for the reader and writes what a pipe takes at once. False: the stream is to end.
bool BackgroundStream::write_some() {
  pollfd fds[] = {{fd_, POLLOUT, 0}, {wake_, POLLIN, 0}};
  if (::poll(fds, 2, -1) < 0) return errno == EINTR;
  if (fds[1].revents != 0) return false;
  std::string next;
  {
    const std::lock_guard lock(mutex_);
    next = kept_.substr(done_, kAtOnce);
  }
  const ssize_t n = ::write(fd_, next.data(), next.size());
  const int error = n < 0 ? errno : 0;
  if (error == EAGAIN || error == EINTR) return true;
  // Told before it is forgotten: who waits in finish() must find it.
  if (error != 0) lose(error == EPIPE ? "its reader has gone" : std::strerror(error));
  {
    const std::lock_guard lock(mutex_);
    closed_ = error == EPIPE;
    done_ = error != 0 ? kept_.size() : done_ + static_cast<std::size_t>(n);
    if (done_ >= kept_.size() - done_) {  // rarely, since what remains has to move
      kept_.erase(0, done_);
      done_ = 0;
    }
  }
  changed_.notify_all();
  return true;
}

}  // namespace stormo::observe
