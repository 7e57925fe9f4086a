#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/health.h>
#include <stormo/transport/net/port_range.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/transport.h>

namespace stormo::transport {

struct TcpPeer {
  Rank rank = 0;
  std::string address;  ///< "10.0.0.2:4242" or "[fd00::2]:4242", as its TcpListener says
};

/// A rank's data port. Bound early, so that its address can be published before anyone connects.
class TcpListener {
 public:
  /// `address` is a host, numeric or a name, with or without a port. The chosen interface only.
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
  /// Watched, never changed: when the group fails, waits end with its cause within 20 ms.
  std::shared_ptr<Health> health;
  /// Connections to each peer, the same on all ranks. Long messages use all of them: for networks
  /// in which one flow does not get the whole line.
  int sockets = 1;
  static constexpr int kMaxSockets = 16;
  /// XXH3 over every payload; the same on all ranks.
  bool checksum = false;
  /// A peer whose host acknowledges nothing for so long is lost; zero: as the kernel decides, after
  /// minutes. How long its process does not read is not judged.
  Duration silence{0};
  /// One line per refused connection: "refused 10.0.0.7:4711: wrong secret".
  std::function<void(std::string_view)> on_refused;
};

/// How often bytes have moved over the sockets of all transports of this process: as long as this
/// changes, an operation that takes long gets on. Any thread.
std::uint64_t tcp_progress();

/// Connects every pair (the higher rank calls the lower), options.sockets times, authenticated from
/// the first byte; strangers are refused and delay nobody. The listener is closed once all peers
/// are connected. The calling thread drives the sockets: no thread of its own, and no progress
/// outside of exchange(). A peer that does not read for long is not judged here: that is the
/// Store's task.
Result<std::unique_ptr<Transport>> make_tcp_transport(TcpOptions options,
                                                      std::unique_ptr<TcpListener> listener,
                                                      Deadline by);

}  // namespace stormo::transport
