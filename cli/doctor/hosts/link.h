#pragma once

#include <memory>
#include <string>
#include <utility>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/port_range.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::cli {

/// What one host has found on its way to another one.
struct LinkMeasurement {
  std::string problem;  ///< why there is no connection, or none that transfers; empty: it works
  bool is_encrypted = false;
  int mtu = 0;                     ///< bytes of a packet, as the kernel knows it; 0: unknown
  double round_trip_seconds = 0;   ///< of the fastest message
  double clock_ahead_seconds = 0;  ///< of the other host's wall clock; wrong by half a round trip
  double bytes_per_second = 0;     ///< of one connection
};

/// Answers the measurements of other hosts, on a thread of its own.
class LinkServer {
 public:
  /// Listens on `host`, on one of `ports`.
  static Result<std::unique_ptr<LinkServer>> start(const std::string& host,
                                                   transport::PortRange ports,
                                                   const transport::Secret& secret);
  virtual ~LinkServer() = default;
  virtual transport::HostPort address() const = 0;
};

/// Where to measure to, and as whom.
struct LinkTarget {
  transport::HostPort address;
  transport::Secret secret;
  Rank from = 0;
  Rank to = 0;
  int size = 1;
};
/// Connects as ranks do, with the secret, and measures for a fraction of a second where the link is
/// fast. Blocks at most for `kLongestMeasurement`.
LinkMeasurement measure_link(const LinkTarget& target);
inline constexpr Duration kLongestMeasurement = std::chrono::seconds(15);

/// Rounds in which all pairs of `count` hosts meet, each pair once.
int rounds_of_pairs(int count);
/// Whom `host` meets in this round; -1: nobody. In each round nobody meets two (circle method).
int partner_in_round(int count, int host, int round);

}  // namespace stormo::cli
