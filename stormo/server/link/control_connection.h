#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/server/message/server_message.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/store/frame.h>

namespace stormo::server {

/// One end of a control connection: frames over a socket that never blocks.
class ControlConnection {
 public:
  /// `max_unread`: bytes that wait for a peer which does not read them, at most, besides one frame.
  explicit ControlConnection(transport::Descriptor socket,
                             std::size_t max_unread = std::numeric_limits<std::size_t>::max())
      : socket_(std::move(socket)), max_unread_(max_unread) {}

  int fd() const { return socket_.get(); }
  /// Gives the socket away; what was received and not taken is lost.
  transport::Descriptor release() { return std::move(socket_); }
  /// What to poll for.
  short poll_events() const;

  /// Takes what has arrived. kIo when the connection has ended.
  Status receive();
  /// The next complete frame's body, valid until the next call; see transport::FrameSplitter.
  Result<std::optional<std::string_view>> next() { return in_.next(); }

  /// Queues a frame. When too many bytes wait it is lost, and flush() fails.
  void send(std::string_view frame);
  /// Sends what it can now. kIo when the connection has ended, kExhausted when the peer does not
  /// read.
  Status flush();

 private:
  transport::Descriptor socket_;
  std::size_t max_unread_;
  transport::FrameSplitter in_{"server", kMaxControlBytes};
  std::string out_;
  std::size_t sent_ = 0;
  bool is_flooded_ = false;
};

}  // namespace stormo::server
