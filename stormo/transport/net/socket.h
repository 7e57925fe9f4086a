#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/port_range.h>

namespace stormo::transport {

using stormo::Descriptor;

/// "10.0.0.2:4242", "[fd00::1]:4242", "node7:4242"; the host without brackets, port 0 when absent.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
  bool operator==(const HostPort&) const = default;
};
/// A bare IPv6 address without brackets is a host without port.
Result<HostPort> parse_host_port(std::string_view text);
/// With brackets where IPv6 needs them; without ":0".
std::string to_string(const HostPort& address);

/// Any address that the kernel connects or binds to.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  /// "10.0.0.2:4242", "[fd00::1]:4242", "unix:NAME", "unix:/PATH".
  std::string to_string() const;
};

/// Addresses of a host; numeric ones without asking a name server, names by getaddrinfo (may
/// block).
Result<std::vector<SocketAddress>> resolve(const HostPort& address);
/// A name is that of an abstract Unix socket: it has no file, ends with its last owner, and can be
/// reached by every user of the network namespace. An absolute path is a socket file, which can be
/// reached by users who may enter its folder.
Result<SocketAddress> unix_address(std::string_view name);

/// Listens on `host`, on the first free port of `ports` (`port` alone when it is not zero).
Result<Descriptor> listen_tcp(const HostPort& address, PortRange ports);
Result<Descriptor> listen_unix(std::string_view name);
/// Address of this end and of the other end.
Result<SocketAddress> local_address_of(int fd);
Result<SocketAddress> peer_address_of(int fd);
/// This end's address without the port ("10.0.0.2", "fd00::1"); empty for Unix sockets.
std::string local_host_of(int fd);

/// Accepts the next pending connection without blocking, and returns the peer's address in `peer`.
/// An invalid Descriptor when there is none, kExhausted when the process is out of descriptors.
Result<Descriptor> accept_from(int listener, SocketAddress* peer);
/// Starts a non-blocking connect. When the socket is writable, connect_outcome() returns its
/// result.
Result<Descriptor> start_connect(const SocketAddress& to);
Status connect_outcome(int fd);

/// kRefused unless the process at the other end of a Unix socket belongs to this user.
Status check_same_user(int fd);

/// No Nagle delay, keep-alive probes, and a congestion control that does not pace loopback traffic.
void tune_tcp(int fd);
/// Makes the socket fail when the peer's kernel has acknowledged nothing for `limit`. Only for
/// sockets whose peer always reads, because Linux also counts the time in which a slow reader's
/// window is closed.
void limit_unacknowledged(int fd, Duration limit);

/// Enables probes of an idle connection, so that it fails within `limit` (at least 3 s) if the
/// network is cut. The peer's kernel answers probes independent of its process. The kernel sends no
/// probes while data wait to be sent; see Acknowledgements.
void keep_alive_within(int fd, Duration limit);

/// Measures for how long the peer's kernel has not answered: not acknowledged data, or a probe of
/// its closed window. A slow reader's kernel answers both, so a closed window does not count. Call
/// it several times a second while an answer is expected; after a pause the time starts at zero
/// again.
class Acknowledgements {
 public:
  /// Zero when no answer is missing.
  Duration owed_for(int fd, TimePoint now);

 private:
  TimePoint since_{};
  TimePoint asked_{};
};

/// First usable address of a network interface: IPv4, else IPv6 (link-local last, with its scope).
Result<std::string> interface_address(std::string_view name);

/// Milliseconds for poll(): rounded up, at most `cap_ms`, 0 when `when` has passed.
int poll_timeout(TimePoint now, TimePoint when, int cap_ms);

}  // namespace stormo::transport
