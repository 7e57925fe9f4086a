#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::transport {

/// Which connections are encrypted (STORMO_TLS).
enum class TlsSetting : std::uint8_t {
  kOff,     ///< none
  kPsk,     ///< those between hosts, by TLS 1.3 with keys from the job's secret
  kAlways,  ///< TCP connections inside a host too
};
inline constexpr TlsSetting kDefaultTls = TlsSetting::kPsk;
inline constexpr std::string_view kTlsVariable = "STORMO_TLS";

Result<TlsSetting> parse_tls_setting(std::string_view text);
/// That of all connections of this process which are made from now on. Whoever reads the
/// environment sets it; before that it is the default. Any thread.
TlsSetting tls_setting();
Status use_tls_setting(std::string_view text);

/// What one end wants of a connection. Values are wire format.
enum class TlsWish : std::uint8_t {
  kInside = 0,  ///< both ends are on this host: whatever the other end wants
  kOff = 1,
  kPsk = 2,
};
inline constexpr TlsWish kLastTlsWish = TlsWish::kPsk;
/// Of this end of a connected socket. Both ends are on one host if it is a Unix socket, or their
/// addresses are equal, or loopback ones.
TlsWish tls_wish(int fd, TlsSetting setting);

/// Whether two ends cannot have a connection: one wants TLS and the other one wants none.
bool disagree(TlsWish one, TlsWish other);
/// Names both settings and the remedy.
std::string tls_mismatch(TlsWish own, TlsWish peer);

}  // namespace stormo::transport
