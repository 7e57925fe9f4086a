#pragma once

#include <cstdint>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/plan/schedule.h>

namespace stormo::comm {

/// The host of each rank, and its local rank there.
struct HostMap {
  std::vector<int> host;   ///< index = rank
  std::vector<int> local;  ///< index = rank
  /// Hosts with these numbers of ranks, ranks numbered host by host.
  static HostMap of(const std::vector<int>& ranks_per_host);
};

/// The memories in which a rank may keep a chunk.
enum class Area : std::uint8_t {
  kIn,       ///< the rank's input
  kOut,      ///< the rank's output; the same memory as kIn when the operation is in place
  kScratch,  ///< chunks that this rank only forwards
  kStaging,  ///< private: results that must not overwrite their operands until all ranks have read
             ///< them
};

/// The memory in which rank `r` keeps a chunk while it is still the rank's own input (`raw`), or
/// afterwards.
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
  bool raw = false;   ///< still that rank's own input, so its scale is applied
  int received = -1;  ///< >= 0: not a place, but the data of this receive of the last exchange
  bool operator==(const Source&) const = default;
};

/// One message of an exchange between hosts.
struct WireMove {
  Rank peer = 0;
  plan::ChunkId chunk = 0;
  Area area = Area::kOut;
  plan::ReceiveOp how =
      plan::ReceiveOp::kCopy;  ///< of receives; kReduce: kept for a later reduction
  bool operator==(const WireMove&) const = default;
};

/// One step of a rank. Chunks are those of the schedule.
struct Instruction {
  enum class Kind {
    kSync,      ///< a barrier of all ranks of this host
    kReduce,    ///< chunk of all `sources`, in this order, combined into all `destinations`
    kCopy,      ///< chunk of sources[0] copied to destinations[0]
    kExchange,  ///< all sends and receives at the same time
    kPrefix,    ///< destinations[i] = the reduction of sources 0 to i (or i-1, see Program)
  } kind = Kind::kSync;
  plan::ChunkId chunk = 0;
  std::vector<Source> sources;
  std::vector<Place> destinations;
  /// kReduce: one term comes from the exchange before it, the others are this rank's own, and no
  /// other step reads the chunk. So the reduction may run while the message is still being
  /// received.
  bool overlaps = false;
  std::vector<WireMove> sends;
  std::vector<WireMove> receives;
  bool operator==(const Instruction&) const = default;
};

/// The steps of one rank in a schedule. It starts after a barrier of the host's ranks, at which
/// they have exchanged addresses.
struct Program {
  int chunks = 1;
  std::vector<Instruction> steps;
  /// Memories of this rank that other ranks of its host read or write: they must be in the Arena,
  /// or be reachable through PeerMemory.
  bool shares_in = false;
  bool shares_out = false;
  bool uses_scratch = false;
  /// By chunk: whether no peer reads or writes it in this rank's kOut. Empty if this rank uses
  /// there what peers use. Else this rank uses these chunks only, and peers the others only.
  std::vector<bool> unshared;
  bool exclusive = false;  ///< kPrefix leaves out the rank's own term
  bool operator==(const Program&) const = default;
};

/// The program of rank `me` in `schedule`. Transfers inside a host become direct reads of the
/// peer's memory; those of a gather become writes to it, so that its root does not copy everything
/// by itself. All reductions of a round into one chunk become one pass, in the order of ranks.
/// If other ranks copy the result of a reduction in the next round, the same pass writes it to
/// them. A pure function.
Program compile(const plan::Schedule& schedule, Rank me, const HostMap& hosts);

/// Program of a scan among the ranks of one host: each rank computes all prefixes of one slice.
Program compile_scan(int ranks, Rank me, bool exclusive);

}  // namespace stormo::comm
