#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <stormo/base/status.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/net/channel.h>

namespace stormo::transport {

/// One end of a connection: frames over a socket that never blocks.
class FrameConnection {
 public:
  /// `frames`: has the limit of received frames. `max_unread`: bytes that wait for a peer which
  /// does not read them, at most, besides one frame.
  FrameConnection(Channel socket, FrameSplitter frames,
                  std::size_t max_unread = std::numeric_limits<std::size_t>::max())
      : socket_(std::move(socket)), in_(std::move(frames)), max_unread_(max_unread) {}

  int fd() const { return socket_.fd(); }
  /// Gives the socket away; what was received and not taken is lost.
  Channel release() { return std::move(socket_); }
  /// What to poll for.
  short poll_events() const;

  /// Takes what has arrived: false if that was nothing. kIo when the connection has ended.
  Result<bool> receive();
  /// The next complete frame's body, valid until the next call; see FrameSplitter.
  Result<std::optional<std::string_view>> next() { return in_.next(); }

  /// Queues a frame with this body. When too many bytes wait it is lost, and flush() fails.
  void send(std::string_view body);
  /// Sends what it can now. kIo when the connection has ended, kExhausted when the peer does not
  /// read.
  Status flush();

 private:
  Channel socket_;
  FrameSplitter in_;
  std::size_t max_unread_;
  std::string out_;
  std::size_t sent_ = 0;
  bool is_flooded_ = false;
};

}  // namespace stormo::transport
