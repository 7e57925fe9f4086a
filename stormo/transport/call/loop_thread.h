#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/socket.h>

namespace stormo::transport {

/// A thread that takes turns: in each it waits for a socket or for wake(), and does what there is
/// to do.
class LoopThread {
 public:
  LoopThread();
  ~LoopThread() { stop(); }
  /// Why there is no eventfd, as where no descriptor is left: then wake() ends no wait.
  const Status& status() const { return status_; }

  /// Calls `turn` again and again, until stop().
  void start(std::function<void()> turn);
  /// Ends the thread after its turn. The first thing in the destructor of whoever owns what the
  /// turns use.
  void stop();
  bool is_stopping() const { return is_stopping_.load(std::memory_order_acquire); }
  bool is_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }
  /// Ends the wait of the present turn, or of the next one. Any thread.
  void wake() const;

  /// For a turn: waits for wake(), for `events` of `fd` (-1: none), until `until`, and at most
  /// `cap_ms`. Which events have come.
  short wait(int fd, short events, TimePoint until, int cap_ms) const;
  /// Of one that waits in another way: each wake() is an edge of it (EPOLLET).
  int fd() const { return fd_.get(); }

 private:
  Descriptor fd_;
  Status status_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace stormo::transport
