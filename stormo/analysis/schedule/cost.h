#pragma once

#include <cstdint>

#include <stormo/base/ids.h>
#include <stormo/plan/schedule.h>
#include <stormo/plan/topology.h>

namespace stormo::analysis {

/// The traffic of a schedule. Tests check that the counters of transports are equal to these
/// numbers.
struct Cost {
  int rounds = 0;
  std::int64_t messages = 0;  ///< one per transfer, empty chunks included
  std::int64_t total_bytes = 0;
  std::int64_t max_bytes_sent = 0;      ///< by any one rank
  std::int64_t max_bytes_received = 0;  ///< by any one rank
  std::int64_t max_bytes_reduced = 0;   ///< received bytes that any one rank reduces
  Rank busiest = 0;  ///< rank with the most bytes sent and received; the lowest of several
  bool operator==(const Cost&) const = default;
};

/// For a buffer of `count` elements of `element_bytes`, partitioned as plan::chunk_extent says.
/// `s` must be within the ranges that parse_schedule checks; transfers * count * element_bytes
/// must stay below 2^62. O(transfers).
Cost cost(const plan::Schedule& s, std::int64_t count, std::int64_t element_bytes = 1);

/// The part of the traffic between hosts.
struct InterHostCost {
  std::int64_t messages = 0;
  std::int64_t total_bytes = 0;
  std::int64_t max_host_bytes_sent = 0;      ///< by all ranks of any one host
  std::int64_t max_host_bytes_received = 0;  ///< by all ranks of any one host
  std::int64_t max_rank_bytes_sent = 0;      ///< by any one rank
  bool operator==(const InterHostCost&) const = default;
};

/// As cost(); topology.ranks() must be s.ranks.
InterHostCost inter_host_cost(const plan::Schedule& s, const plan::Topology& topology,
                              std::int64_t count, std::int64_t element_bytes = 1);

}  // namespace stormo::analysis
