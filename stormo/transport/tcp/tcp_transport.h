#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/health.h>
#include <stormo/transport/net/channel.h>
#include <stormo/transport/net/port_range.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/transport.h>

namespace stormo::transport {

struct TcpPeer {
  Rank rank = 0;
  std::string address;  ///< "10.0.0.2:4242" or "[fd00::2]:4242": address() of its TcpListener
};

/// A rank's data port. It is bound early, so that its address can be posted before peers connect.
class TcpListener {
 public:
  /// Listens on `address` only: a numeric address or a name, with or without a port.
  static Result<std::unique_ptr<TcpListener>> listen(std::string_view address, PortRange ports);
  /// "10.0.0.2:4242".
  const std::string& address() const { return address_; }
  Descriptor release() { return std::move(socket_); }

 private:
  TcpListener(Descriptor socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}
  Descriptor socket_;
  std::string address_;
};

struct TcpOptions {
  Rank rank = 0;
  int size = 1;
  std::vector<TcpPeer> peers;  ///< only those reached by tcp
  Secret secret;
  Epoch epoch = 0;
  /// Only read: when the group fails, waits end with its cause within 20 ms.
  std::shared_ptr<Health> health;
  /// Connections to each peer, the same on all ranks. Long messages use all of them, for networks
  /// in which one flow does not get the full bandwidth.
  int sockets = 1;
  static constexpr int kMaxSockets = 16;
  /// Add an XXH3 checksum to every payload; the same on all ranks.
  bool checksum = false;
  /// A peer whose kernel acknowledges nothing for this time is lost; zero: the kernel decides,
  /// after minutes. The time for which its process does not read does not count.
  Duration silence{0};
  /// One line per refused connection: "refused 10.0.0.7:4711: wrong secret".
  std::function<void(std::string_view)> on_refused;
};

/// A counter that changes whenever bytes are moved over the sockets of any transport of this
/// process. While it changes, a long operation makes progress. Any thread.
std::uint64_t tcp_progress();
/// Changes it: for code that moves bytes over sockets of its own.
void note_tcp_progress();

/// The connections of a rank to its peers.
struct TcpConnections {
  std::unique_ptr<Transport> transport;
  std::map<Rank, Channel> others;  ///< one more to each peer, for a use of the caller's
};

/// Connects every pair (the higher rank connects to the lower one), options.sockets times and once
/// more; blocks at most until `by`. Connections are authenticated before any other byte; those
/// without the secret are refused. The listener is closed once all peers are connected. The
/// transport has no thread: the calling thread drives the sockets, and there is no progress outside
/// exchange(). A peer that does not read for a long time is not detected here; the Store does that.
Result<TcpConnections> connect_tcp(TcpOptions options, std::unique_ptr<TcpListener> listener,
                                   Deadline by);

}  // namespace stormo::transport
