#pragma once

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/socket.h>

namespace stormo::transport {

/// How a thread that waits for a socket is told of something else.
class Waker {
 public:
  Waker();
  /// kIo when the process was out of descriptors.
  Status status() const;
  int fd() const { return fd_.get(); }
  /// Ends the wait of the thread, or its next one. Any thread.
  void wake() const;
  /// It has been heard.
  void clear() const;
  /// Waits for wake(), for `events` of `fd` (-1: none), until `until`, and at most `cap_ms`. Which
  /// events have come.
  short wait(int fd, short events, TimePoint until, int cap_ms) const;

 private:
  Descriptor fd_;
};

}  // namespace stormo::transport
