#pragma once

#include <vector>

#include <stormo/base/ids.h>
#include <stormo/plan/schedule.h>

namespace stormo::comm {

/// Which host each rank is on, and where among its ranks.
struct HostMap {
  std::vector<int> host;   ///< index = rank
  std::vector<int> local;  ///< index = rank
  /// Hosts with these numbers of ranks, ranks numbered host by host.
  static HostMap of(const std::vector<int>& ranks_per_host);
  /// Ranks of `host`, in order of their local rank.
  std::vector<Rank> ranks_of(int host) const;
};

/// One message of a wire step.
struct WireMove {
  Rank peer = 0;
  plan::ChunkId chunk = 0;
  plan::Combine how = plan::Combine::kCopy;  ///< receives only
  bool operator==(const WireMove&) const = default;
};

/// One thing a rank does. Chunks are those of the schedule.
struct Step {
  enum class Kind {
    kSync,      ///< all ranks of this host meet
    kReduce,    ///< chunk of all `sources` combined into all `destinations` (local ranks)
    kPull,      ///< chunk copied from local rank sources[0] to this rank
    kScale,     ///< this rank's chunk multiplied by its scale (it goes to the wire unreduced)
    kExchange,  ///< all sends and receives at once
  } kind = Kind::kSync;
  plan::ChunkId chunk = 0;
  std::vector<int> sources;       ///< local ranks, ascending
  std::vector<bool> raw;          ///< by source: still that rank's own input, so its scale applies
  std::vector<int> destinations;  ///< local ranks
  std::vector<WireMove> sends;
  std::vector<WireMove> receives;
  bool operator==(const Step&) const = default;
};

/// A rank's part of a schedule. Begins after a meeting of the host's ranks (at which they exchanged
/// addresses).
struct Program {
  int chunks = 1;
  std::vector<Step> steps;
  bool operator==(const Program&) const = default;
};

/// The projection of `schedule` on rank `me`: transfers inside a host become direct reads of the
/// peer's memory, several reductions into one chunk become one pass, and a reduction whose result
/// all others copy in the next round writes it to them in the same pass. A pure function.
Program compile(const plan::Schedule& schedule, Rank me, const HostMap& hosts);

}  // namespace stormo::comm
