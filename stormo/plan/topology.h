#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>

namespace stormo::plan {

/// The cost of one kind of links, as in LogGP: a message of b bytes takes latency_s + b *
/// seconds_per_byte.
struct Link {
  double latency_s = 0;         ///< alpha
  double seconds_per_byte = 0;  ///< beta
  bool operator==(const Link&) const = default;
};

/// The ranks on each host, and the cost of links. Used by the simulator and for the choice of
/// algorithms, not by transports.
struct Topology {
  std::vector<int> host_sizes;  ///< ranks on each host, >= 1; ranks are numbered host by host
  Link intra;                   ///< between two ranks of one host
  Link inter;                   ///< between hosts; the bandwidth is that of one host's interface
  double reduce_seconds_per_byte = 0;  ///< gamma
  bool operator==(const Topology&) const = default;

  /// hosts and ranks_per_host >= 1, their product <= kMaxRanks.
  static Topology uniform(int hosts, int ranks_per_host, Link intra, Link inter,
                          double reduce_seconds_per_byte = 0);

  /// Shared memory inside of hosts, gigabit Ethernet between them.
  static Topology gigabit(std::vector<int> host_sizes);

  int hosts() const { return static_cast<int>(host_sizes.size()); }
  int ranks() const;
  /// The host of every rank, in the order of ranks.
  std::vector<int> host_of_ranks() const;
};

/// Versioned text form:
///   topology v1
///   hosts 2 2
///   intra latency_s=5e-07 byte_s=1e-10
///   inter latency_s=2e-05 byte_s=8e-09
///   reduce byte_s=1e-10
std::string to_text(const Topology& t);
/// Inverse of to_text; kBadPlan with line and column for anything else.
Result<Topology> parse_topology(std::string_view text);
/// Equal topologies have equal hashes, on every machine.
std::uint64_t hash(const Topology& t);

}  // namespace stormo::plan
