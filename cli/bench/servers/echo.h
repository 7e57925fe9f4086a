#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/transport/net/channel.h>
#include <stormo/transport/net/socket.h>

namespace stormo::cli {

/// The least that a server behind a socket does, as an opponent: it takes gradients and sends as
/// many bytes back. There are no messages to encode, and no weights to update. It has a thread for
/// each connection.
class EchoServer {
 public:
  /// `bytes`: of a gradient. kIo without sockets.
  static Result<std::unique_ptr<EchoServer>> listen(const transport::HostPort& address,
                                                    std::uint64_t bytes);
  ~EchoServer();
  EchoServer(const EchoServer&) = delete;

  Result<transport::HostPort> address() const;
  /// Blocks until so many clients are there.
  Status accept(int clients);

 private:
  explicit EchoServer(std::uint64_t bytes) : bytes_(bytes) {}

  std::uint64_t bytes_;
  transport::Descriptor listener_;
  std::deque<transport::Channel> clients_;
  std::vector<std::thread> threads_;  // one for each of these
};

/// Connections to echo servers.
class EchoClient {
 public:
  /// `bytes`: of a gradient, for each of the servers.
  static Result<std::unique_ptr<EchoClient>> connect(
      const std::vector<transport::HostPort>& servers, std::uint64_t bytes);
  /// Sends a gradient to each server, and gets its weights; all servers at the same time.
  Status push_and_pull();

 private:
  struct Connection {
    transport::Channel socket;
    std::vector<std::byte> buffer;
    Status push_and_pull();
  };
  std::vector<Connection> connections_;
};

}  // namespace stormo::cli
