#include <fmt/format.h>
#include <netinet/in.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/net/tls_setting.h>

#include <atomic>
#include <cstring>

namespace stormo::transport {
namespace {

std::atomic<TlsSetting> g_setting{kDefaultTls};

std::string_view setting_of(TlsWish wish) { return wish == TlsWish::kOff ? "off" : "psk"; }

const sockaddr_in& as_v4(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in&>(a.storage);
}
const sockaddr_in6& as_v6(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in6&>(a.storage);
}

/// Whatever the ports.
bool are_on_one_host(const SocketAddress& own, const SocketAddress& peer) {
  if (own.family() != peer.family()) return false;
  if (own.family() == AF_INET) {
    const in_addr_t a = as_v4(own).sin_addr.s_addr;
    const in_addr_t b = as_v4(peer).sin_addr.s_addr;
    const auto is_loopback = [](in_addr_t address) { return ntohl(address) >> 24 == 127; };
    return a == b || (is_loopback(a) && is_loopback(b));
  }
  if (own.family() != AF_INET6) return true;  // a Unix socket
  return std::memcmp(&as_v6(own).sin6_addr, &as_v6(peer).sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

Result<TlsSetting> parse_tls_setting(std::string_view text) {
  if (text == "off") return TlsSetting::kOff;
  if (text == "psk") return TlsSetting::kPsk;
  if (text == "always") return TlsSetting::kAlways;
  return invalid_argument(fmt::format("{} is '{}': use off, psk or always", kTlsVariable, text));
}

TlsSetting tls_setting() { return g_setting; }

Status use_tls_setting(std::string_view text) {
  STORMO_ASSIGN_OR_RETURN(const TlsSetting setting, parse_tls_setting(text));
  g_setting = setting;
  return {};
}

TlsWish tls_wish(int fd, TlsSetting setting) {
  const Result<SocketAddress> own = local_address_of(fd);
  const Result<SocketAddress> peer = peer_address_of(fd);
  const bool is_unix = own.ok() && own->family() == AF_UNIX;
  const bool is_inside = own.ok() && peer.ok() && are_on_one_host(*own, *peer);
  if (is_unix || (is_inside && setting != TlsSetting::kAlways)) return TlsWish::kInside;
  return setting == TlsSetting::kOff ? TlsWish::kOff : TlsWish::kPsk;
}

bool disagree(TlsWish one, TlsWish other) {
  return one != other && one != TlsWish::kInside && other != TlsWish::kInside;
}

std::string tls_mismatch(TlsWish own, TlsWish peer) {
  return fmt::format(
      "the peer has {0}={1}, this process {0}={2}; set the same for all processes of the job: psk, "
      "or off where the network between the hosts is private",
      kTlsVariable, setting_of(peer), setting_of(own));
}

}  // namespace stormo::transport
