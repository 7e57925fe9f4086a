#pragma once

#include <cstdint>
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

/// The memories that a rank may keep a chunk in.
enum class Area : std::uint8_t {
  kIn,       ///< what it contributes
  kOut,      ///< where its outcome goes; the same memory as kIn when the operation works in place
  kScratch,  ///< chunks that only pass through this rank
  kStage,    ///< private: results that must not replace their operands before all have read them
};

/// Where rank `r` keeps a chunk: as long as it is still its own input (`raw`), and afterwards.
Area area_of(const plan::Schedule& s, Rank r, plan::ChunkId chunk, bool raw);

/// A chunk in the memory of a rank of this host.
struct Place {
  int local = 0;
  Area area = Area::kOut;
  bool operator==(const Place&) const = default;
};

/// One operand of a reduction.
struct Source {
  Place place;
  bool raw = false;   ///< still that rank's own input, so its scale applies
  int received = -1;  ///< >= 0: not a place, but what this receive of the last exchange brought
  bool operator==(const Source&) const = default;
};

/// One message of an exchange.
struct WireMove {
  Rank peer = 0;
  plan::ChunkId chunk = 0;
  Area area = Area::kOut;
  plan::Combine how = plan::Combine::kCopy;  ///< receives only; kReduce: kept for a reduction
  bool operator==(const WireMove&) const = default;
};

/// One thing a rank does. Chunks are those of the schedule.
struct Step {
  enum class Kind {
    kSync,      ///< all ranks of this host meet
    kReduce,    ///< chunk of all `sources`, in this order, combined into all `destinations`
    kCopy,      ///< chunk of sources[0] copied to destinations[0]
    kExchange,  ///< all sends and receives at once
    kPrefix,    ///< destinations[i] = the reduction of sources 0 to i (or i-1, see Program)
  } kind = Kind::kSync;
  plan::ChunkId chunk = 0;
  std::vector<Source> sources;
  std::vector<Place> destinations;
  /// kReduce: one term comes with the exchange before it, the others are this rank's own, and
  /// nothing else looks at the chunk: may be done while the message is under way.
  bool overlaps = false;
  std::vector<WireMove> sends;
  std::vector<WireMove> receives;
  bool operator==(const Step&) const = default;
};

/// A rank's part of a schedule. Begins after a meeting of the host's ranks (at which they exchanged
/// addresses).
struct Program {
  int chunks = 1;
  std::vector<Step> steps;
  /// Memories of this rank that others of its host read or write, by Area: they must lie in the
  /// Arena.
  bool shares_in = false;
  bool shares_out = false;
  bool uses_scratch = false;
  bool exclusive = false;  ///< kPrefix leaves out the rank's own term
  bool operator==(const Program&) const = default;
};

/// The projection of `schedule` on rank `me`: transfers inside a host become direct reads of the
/// peer's memory, all reductions of a round into one chunk become one pass in the order of ranks,
/// and a reduction whose result others copy in the next round writes it to them in the same pass.
/// A pure function.
Program compile(const plan::Schedule& schedule, Rank me, const HostMap& hosts);

/// Scan among the ranks of one host: each rank goes through all ranks' terms of one slice.
Program compile_scan(int ranks, Rank me, bool exclusive);

}  // namespace stormo::comm
