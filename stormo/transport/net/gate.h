#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/channel.h>
#include <stormo/transport/net/handshake.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/net/tls_setting.h>
#include <stormo/transport/net/tls_stream.h>

namespace stormo::transport {

/// Authenticates the connections of a listening socket: accepts them, runs the handshake, and
/// that of TLS if they come from another host, and returns those that succeed. Unauthenticated
/// connections use at most kMaxUnproven descriptors, and a fixed-size buffer each from their first
/// byte on, for at most kHandshakeTime. They do not delay a real peer for long: when all places are
/// taken, the oldest connection that has sent nothing is closed after kCrowdedGrace, then the
/// oldest of all (a real peer that is closed tries again). So 12,800 such connections a second are
/// handled without a queue. Never blocks; one thread at a time.
class Gate {
 public:
  static constexpr std::size_t kMaxUnproven = 256;
  static constexpr Duration kHandshakeTime = std::chrono::seconds(3);
  static constexpr Duration kCrowdedGrace = std::chrono::milliseconds(20);

  struct Options {
    Descriptor listener;
    bool is_unix = false;  ///< check the peer's user
    Secret secret;
    Purpose purpose = Purpose::kStore;
    TlsSetting tls = tls_setting();
    /// Decides whether an authenticated client is admitted. Empty: all are admitted.
    std::function<Refusal(const Hello&)> admit;
    /// One line per refused connection: "refused 10.0.0.7:4711: wrong secret".
    std::function<void(std::string_view)> on_refused;
  };
  struct Visitor {
    Channel socket;
    Hello hello;
    std::string peer;
  };

  static Result<std::unique_ptr<Gate>> open(Options options);
  /// Sets the listener, a TCP port of `ports` if `address` has none; where others reach it.
  static Result<HostPort> listen(Options& options, const HostPort& address, PortRange ports);
  ~Gate();

  /// Descriptor to poll; readable when step() has something to do.
  int poll_fd() const { return epoll_.get(); }
  /// step() is also due at this time.
  TimePoint wake_at(TimePoint now) const;
  std::vector<Visitor> step(TimePoint now);
  /// True if no connection was pending at the last step().
  bool idle() const { return pending_.empty() && listening_; }
  /// Closes the listener and refuses, with `reason`, all connections that are not yet
  /// authenticated.
  void close(std::string_view reason);

 private:
  struct Pending {
    Descriptor socket;
    SocketAddress address;
    TimePoint since;
    std::optional<Handshake> handshake = {};  ///< from its first byte on
    std::unique_ptr<TlsStream> tls = {};      ///< once it is accepted
    bool gone = false;
  };

  Gate() = default;
  void accept_waiting(TimePoint now, std::vector<Visitor>& admitted);
  void enter(Descriptor socket, const SocketAddress& address, TimePoint now,
             std::vector<Visitor>& admitted);
  bool make_room(TimePoint now);
  std::string name_of(const Pending& p) const;
  bool begin(Pending& p);
  void expire(TimePoint now);
  void progress(Pending& p, std::vector<Visitor>& admitted);
  void conclude(Pending& p);
  bool secure(Pending& p);
  bool flush(Pending& p);
  void refuse(Pending& p, std::string_view reason);
  void listen(bool on);

  Options options_;
  Descriptor epoll_;
  std::vector<std::unique_ptr<Pending>> pending_;  // oldest first
  bool listening_ = false;
  TimePoint paused_until_{};
};

}  // namespace stormo::transport
