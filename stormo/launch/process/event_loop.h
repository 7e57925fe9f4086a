#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

using transport::Descriptor;

/// Waits for events of descriptors on one thread (epoll) and calls callbacks. Callbacks may watch
/// and forget any descriptor, including their own. Descriptors are borrowed: call forget() before a
/// descriptor is closed.
class EventLoop {
 public:
  using Callback = std::function<void()>;
  static Result<std::unique_ptr<EventLoop>> create();

  /// Calls `callback` whenever `fd` is readable or at its end.
  Status watch_readable(int fd, Callback callback);
  /// Calls `callback` whenever `fd` is writable or its reader has gone.
  Status watch_writable(int fd, Callback callback);
  void forget(int fd);
  /// Suspends or resumes a watched descriptor.
  void pause(int fd, bool paused);

  /// Runs `task` on the loop's thread; the only function that any thread may call.
  void post(Callback task);

  /// Blocks until there is an event or `by` has passed, and calls the callbacks.
  Status run_once(Deadline by);

 private:
  struct Watch {
    std::uint64_t id = 0;
    std::uint32_t interest = 0;
    std::shared_ptr<Callback> callback;
  };
  EventLoop(Descriptor epoll, Descriptor wake);
  Status add(int fd, std::uint32_t interest, Callback callback);
  void run_posted();

  Descriptor epoll_;
  Descriptor wake_;
  std::uint64_t next_id_ = 1;
  std::map<int, Watch> watches_;
  std::mutex mutex_;
  std::vector<Callback> posted_;
};

}  // namespace stormo::launch
