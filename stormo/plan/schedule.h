#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>

namespace stormo::plan {

/// Index into an even partition of the buffer: chunk c of C covers elements
/// [floor(c*count/C), floor((c+1)*count/C)).
using ChunkId = int;

/// How the receiver takes a chunk.
enum class Combine : std::uint8_t {
  kCopy,    ///< replaces what it had
  kReduce,  ///< adds (or min, max, ...) to what it has
};

/// One chunk moves once. Written from the global view: an unmatched send cannot be expressed.
struct Transfer {
  Rank from = 0;
  Rank to = 0;
  ChunkId chunk = 0;
  Combine how = Combine::kCopy;
  auto operator<=>(const Transfer&) const = default;
};

/// Transfers that all read the state left by the previous round.
using Round = std::vector<Transfer>;

/// What must hold when a schedule is done.
enum class GoalKind : std::uint8_t {
  kAllReduce,      ///< every rank holds the reduction of all ranks, in every chunk
  kReduceScatter,  ///< owner(chunk) holds the reduction of all ranks of that chunk
  kAllGather,      ///< chunk c starts valid at owner(c) only; every rank ends with every chunk
  kBroadcast,      ///< every rank ends with the root's chunks
};

/// owner(chunk) = chunk * ranks / chunks: consecutive chunks belong to consecutive ranks.
struct Goal {
  GoalKind kind = GoalKind::kAllReduce;
  Rank root = 0;  ///< kBroadcast only
  auto operator<=>(const Goal&) const = default;
};

/// One collective among `ranks` ranks over a buffer cut into `chunks` chunks. A plain value:
/// compare, hash, print, parse, verify, cost, simulate, execute.
struct Schedule {
  std::string name;  ///< the builder's name, e.g. "ring_all_reduce"
  Goal goal;
  int ranks = 1;
  int chunks = 1;
  std::vector<Round> rounds;
  bool operator==(const Schedule&) const = default;
};

/// The rank that owns `chunk` at the start of an all_gather and at the end of a reduce_scatter.
constexpr Rank owner(const Schedule& s, ChunkId chunk) {
  return static_cast<Rank>(static_cast<std::int64_t>(chunk) * s.ranks / s.chunks);
}

/// Elements [begin, end) of chunk c of `chunks` over `count` elements.
struct Extent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};
constexpr Extent chunk_extent(ChunkId c, int chunks, std::int64_t count) {
  // count * chunks may pass 2^63 only beyond 2^47 elements in 2^16 chunks
  return {count * c / chunks, count * (c + 1) / chunks};
}

std::string_view to_string(GoalKind kind);

/// Versioned text form, one line per round; docs/adr has the grammar. Example:
///   schedule v1 ring_reduce_scatter reduce_scatter ranks=4 chunks=4
///   round 0: 0>1 +c3 1>2 +c0 2>3 +c1 3>0 +c2
///   round 1: ...
/// `+` reduces, `=` copies.
std::string to_text(const Schedule& s);
/// Inverse of to_text; kBadPlan with line and column for anything else. Checks ranges of ranks and
/// chunks (so that no later reader has to), not the goal: that is analysis/verify.
Result<Schedule> parse_schedule(std::string_view text);
/// Equal schedules have equal hashes, on every machine.
std::uint64_t hash(const Schedule& s);

}  // namespace stormo::plan
