#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stormo/base/text.h>
#include <stormo/transport/net/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

namespace stormo::transport {
namespace {

constexpr int kBacklog = 1024;

const sockaddr* raw(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr*>(&a.storage);
}
sockaddr* raw(SocketAddress& a) { return reinterpret_cast<sockaddr*>(&a.storage); }

void set_option(int fd, int level, int option, int value) {
  // Tuning only: a kernel without the option still carries the bytes.
  (void)::setsockopt(fd, level, option, &value, sizeof value);
}

void set_port(SocketAddress& a, std::uint16_t port) {
  if (a.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&a.storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&a.storage)->sin_port = htons(port);
  }
}

Result<std::uint16_t> parse_port(std::string_view text, std::string_view whole) {
  const auto port = number_in<std::uint16_t>(text);
  if (port) return *port;
  return invalid_argument(
      fmt::format("'{}' has no port between 0 and 65535; write HOST:PORT or [IPV6]:PORT", whole));
}

/// Host and numeric port of an internet address.
std::string numeric_host(const SocketAddress& a) {
  char host[NI_MAXHOST] = {};
  if (::getnameinfo(raw(a), a.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
    return "?";
  return host;
}

std::uint16_t port_of(const SocketAddress& a) {
  return ntohs(a.family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&a.storage)->sin6_port
                                      : reinterpret_cast<const sockaddr_in*>(&a.storage)->sin_port);
}

Result<Descriptor> new_socket(int family) {
  Descriptor fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno_error("socket");
  return fd;
}

Result<Descriptor> listen_on(const SocketAddress& at) {
  STORMO_ASSIGN_OR_RETURN(Descriptor fd, new_socket(at.family()));
  if (at.family() != AF_UNIX) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(fd.get(), raw(at), at.length) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    const Code code = errno == EADDRINUSE || errno == EACCES ? Code::kExhausted : Code::kIo;
    return Status(code, "listen on " + at.to_string() + ": " + std::strerror(errno));
  }
  return fd;
}

}  // namespace

Result<HostPort> parse_host_port(std::string_view text) {
  HostPort out;
  std::string_view port;
  if (!text.empty() && text.front() == '[') {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) {
      return invalid_argument(
          fmt::format("'{}' lacks the closing bracket; write [IPV6]:PORT", text));
    }
    out.host = text.substr(1, close - 1);
    port = text.substr(close + 1);
  } else if (std::count(text.begin(), text.end(), ':') > 1) {
    out.host = text;
  } else {
    const std::size_t colon = std::min(text.find(':'), text.size());
    out.host = text.substr(0, colon);
    port = text.substr(colon);
  }
  if (out.host.empty()) {
    return invalid_argument(fmt::format("'{}' has no host; write HOST:PORT or [IPV6]:PORT", text));
  }
  if (port.empty()) return out;
  if (port.front() != ':') {
    return invalid_argument(
        fmt::format("'{}' is not an address; write HOST:PORT or [IPV6]:PORT", text));
  }
  STORMO_ASSIGN_OR_RETURN(out.port, parse_port(port.substr(1), text));
  return out;
}

std::string to_string(const HostPort& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  const std::string host = v6 ? fmt::format("[{}]", address.host) : address.host;
  return address.port == 0 ? host : fmt::format("{}:{}", host, address.port);
}

std::string SocketAddress::to_string() const {
  if (family() == AF_INET || family() == AF_INET6) {
    return transport::to_string(HostPort{numeric_host(*this), port_of(*this)});
  }
  const auto* un = reinterpret_cast<const sockaddr_un*>(&storage);
  constexpr std::size_t kHead = offsetof(sockaddr_un, sun_path) + 1;
  if (length <= kHead) return "unix:";
  if (un->sun_path[0] == '/') return "unix:" + std::string(un->sun_path, length - kHead);
  return "unix:" + std::string(un->sun_path + 1, length - kHead);
}

Result<std::vector<SocketAddress>> resolve(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int rc = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (rc != 0) {
    return Status(Code::kNotFound,
                  fmt::format("host '{}': {}; give a numeric address or a name that resolves",
                              address.host, ::gai_strerror(rc)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> out;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    SocketAddress s;
    std::memcpy(&s.storage, a->ai_addr, a->ai_addrlen);
    s.length = a->ai_addrlen;
    out.push_back(s);
  }
  return out;
}

Result<SocketAddress> unix_address(std::string_view name) {
  sockaddr_un un{};
  if (name.empty() || name.size() + 1 > sizeof un.sun_path) {
    return invalid_argument(fmt::format("Unix socket name '{}' must have 1 to {} characters", name,
                                        sizeof un.sun_path - 1));
  }
  un.sun_family = AF_UNIX;
  const bool is_path = name.starts_with('/');  // its closing zero counts; an abstract name's leads
  std::memcpy(un.sun_path + (is_path ? 0 : 1), name.data(), name.size());
  SocketAddress out;
  std::memcpy(&out.storage, &un, sizeof un);
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

Result<Descriptor> listen_tcp(const HostPort& address, PortRange ports) {
  if (address.port != 0) ports = {address.port, address.port};
  if (ports.last < ports.first) {
    return invalid_argument(
        fmt::format("port range {}-{} is empty; write FIRST-LAST with FIRST <= "
                    "LAST",
                    ports.first, ports.last));
  }
  STORMO_ASSIGN_OR_RETURN(const std::vector<SocketAddress> found, resolve(address));
  SocketAddress at = found.front();
  int attempts = 0;
  Status last;
  for (int port = ports.first; port <= ports.last; ++port) {
    set_port(at, static_cast<std::uint16_t>(port));
    ++attempts;
    Result<Descriptor> fd = listen_on(at);
    if (fd.ok()) return fd;
    last = fd.status();
    if (last.code() != Code::kExhausted) return last;  // the address itself is wrong
  }
  if (address.port != 0) {
    return Status(Code::kExhausted,
                  fmt::format("cannot listen on {} ({}); end what occupies it, or "
                              "choose another port",
                              to_string(address), last.message()));
  }
  return Status(Code::kExhausted,
                fmt::format("no free port on {} in {}-{} after {} attempt{} ({}); widen the port "
                            "range or end what occupies it",
                            address.host, ports.first, ports.last, attempts,
                            attempts == 1 ? "" : "s", last.message()));
}

Result<Descriptor> listen_unix(std::string_view name) {
  STORMO_ASSIGN_OR_RETURN(const SocketAddress at, unix_address(name));
  return listen_on(at);
}

Result<SocketAddress> local_address_of(int fd) {
  SocketAddress a;
  a.length = sizeof a.storage;
  if (::getsockname(fd, raw(a), &a.length) != 0) return errno_error("getsockname");
  return a;
}

Result<SocketAddress> peer_address_of(int fd) {
  SocketAddress a;
  a.length = sizeof a.storage;
  if (::getpeername(fd, raw(a), &a.length) != 0) return errno_error("getpeername");
  return a;
}

std::string local_host_of(int fd) {
  const Result<SocketAddress> a = local_address_of(fd);
  if (!a.ok() || a->family() == AF_UNIX) return {};
  return numeric_host(*a);
}

Result<Descriptor> accept_from(int listener, SocketAddress* peer) {
  for (;;) {
    peer->length = sizeof peer->storage;
    Descriptor fd(::accept4(listener, raw(*peer), &peer->length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) return fd;
    switch (errno) {
      case EINTR:
      case ECONNABORTED: continue;  // that client has left already: look for the next
      case EAGAIN: return Descriptor();
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return Status(Code::kExhausted, std::string("accept: ") + std::strerror(errno) +
                                            "; raise the limit on open files (ulimit -n)");
      default: return errno_error("accept");
    }
  }
}

Result<Descriptor> start_connect(const SocketAddress& to) {
  STORMO_ASSIGN_OR_RETURN(Descriptor fd, new_socket(to.family()));
  if (::connect(fd.get(), raw(to), to.length) != 0 && errno != EINPROGRESS) {
    return errno_error("connect to " + to.to_string());
  }
  return fd;
}

Status connect_outcome(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno_error("connect");
  if (error == 0) return {};
  errno = error;  // as after start_connect()
  return io_error(std::strerror(error));
}

Status check_same_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return errno_error("SO_PEERCRED");
  }
  if (peer.uid == ::geteuid()) return {};
  return Status(Code::kRefused, fmt::format("process {} belongs to user {}, this one to user {}",
                                            peer.pid, peer.uid, ::geteuid()));
}

void tune_tcp(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // bbr paces what loopback and veth could take at once (measured: half the rate); where cubic is
  // not permitted to this user, reno always is.
  static constexpr std::string_view kUnpaced[] = {"cubic", "reno"};
  for (const std::string_view name : kUnpaced) {
    if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                     static_cast<socklen_t>(name.size())) == 0) {
      break;
    }
  }
}

void limit_unacknowledged(int fd, Duration limit) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(ms));
}

void keep_alive_within(int fd, Duration limit) {
  const auto seconds = static_cast<int>(std::chrono::ceil<std::chrono::seconds>(limit).count());
  const int idle = std::max(1, seconds - 2);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);  // one may be lost
}

Duration Acknowledgements::owed_for(int fd, TimePoint now) {
  using std::chrono::milliseconds;
  // A retransmission that was answered is no debt, though its data may not be acknowledged: the
  // reader's kernel had no room. The answer to one takes less than this.
  constexpr Duration kRoundTrip = std::chrono::seconds(1);
  const bool afresh = now - std::exchange(asked_, now) > kRoundTrip;
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return Duration::zero();
  const Duration answered = milliseconds(info.tcpi_last_ack_recv);
  const Duration sent = milliseconds(info.tcpi_last_data_sent);
  const bool owes = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
  if (afresh || !owes) since_ = now;
  since_ = std::max(since_, now - answered);
  return info.tcpi_probes > 0 || answered > sent + kRoundTrip ? now - since_ : Duration::zero();
}

int poll_timeout(TimePoint now, TimePoint when, int cap_ms) {
  if (when <= now) return 0;
  const Duration left = when - now;
  if (left >= std::chrono::milliseconds(cap_ms)) return cap_ms;
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

}  // namespace stormo::transport
