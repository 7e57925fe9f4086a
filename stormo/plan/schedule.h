#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>

namespace stormo::plan {

/// Index into an even partition of the buffer: chunk c of C covers elements
/// [floor(c*count/C), floor((c+1)*count/C)).
using ChunkId = int;

/// What the receiver does with a chunk.
enum class ReceiveOp : std::uint8_t {
  kCopy,    ///< replaces its value
  kReduce,  ///< combines it with its value (sum, min, max, ...)
};

/// One chunk sent from one rank to another. A transfer describes both ranks, so a send without a
/// receive cannot be expressed.
struct Transfer {
  Rank from = 0;
  Rank to = 0;
  ChunkId chunk = 0;
  ReceiveOp how = ReceiveOp::kCopy;
  auto operator<=>(const Transfer&) const = default;
};

/// Transfers that all read the values that the previous round has left. A rank may send a chunk and
/// reduce into it in the same round (as in recursive doubling); it then sends the old value. All
/// values that a rank reduces into one chunk in one round are combined in one pass, in ascending
/// order of rank, including its own value.
using Round = std::vector<Transfer>;

/// What a schedule must achieve. At the start every chunk has either one value, at one rank, or a
/// term at every rank. At the end that value, or the reduction of all terms, must be at one rank or
/// at every rank:
///
/// | goal           | starts at        | ends at           |
/// |----------------|------------------|-------------------|
/// | all_reduce     | every rank       | every rank        |
/// | reduce_scatter | every rank       | owner(chunk)      |
/// | reduce         | every rank       | root              |
/// | scan           | every rank       | every rank r, the reduction of ranks 0 to r |
/// | all_gather     | owner(chunk)     | every rank        |
/// | gather         | owner(chunk)     | root              |
/// | broadcast      | root             | every rank        |
/// | scatter        | root             | owner(chunk)      |
/// | all_to_all     | sender(chunk)    | addressee(chunk)  |
enum class GoalKind : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kScan,
  kAllToAll,
};

struct Goal {
  GoalKind kind = GoalKind::kAllReduce;
  Rank root = 0;  ///< only for goals with a root
  auto operator<=>(const Goal&) const = default;
};

constexpr bool has_root(GoalKind kind) {
  return kind == GoalKind::kBroadcast || kind == GoalKind::kReduce || kind == GoalKind::kGather ||
         kind == GoalKind::kScatter;
}
/// Whether the result of a chunk is a reduction of the ranks' terms.
constexpr bool reduces(GoalKind kind) {
  return kind == GoalKind::kAllReduce || kind == GoalKind::kReduceScatter ||
         kind == GoalKind::kReduce || kind == GoalKind::kScan;
}

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

/// The rank that owns a chunk: consecutive chunks belong to consecutive ranks.
constexpr Rank owner(const Schedule& s, ChunkId chunk) {
  return static_cast<Rank>(static_cast<std::int64_t>(chunk) * s.ranks / s.chunks);
}
/// In an all_to_all the buffer has ranks * ranks blocks, one for each pair, ordered by sender and
/// then by addressee (the receiver).
constexpr Rank sender(const Schedule& s, ChunkId chunk) { return owner(s, chunk); }
constexpr Rank addressee(const Schedule& s, ChunkId chunk) {
  const auto pairs = static_cast<std::int64_t>(s.ranks) * s.ranks;
  return static_cast<Rank>(static_cast<std::int64_t>(chunk) * pairs / s.chunks % s.ranks);
}

/// The only rank that has a value of `chunk` at the start; empty: every rank has a term.
std::optional<Rank> only_source(const Schedule& s, ChunkId chunk);
/// The only rank that must have the result of `chunk` at the end; empty: every rank.
std::optional<Rank> only_target(const Schedule& s, ChunkId chunk);

/// The ranks [first, end) whose terms the result of a chunk at rank r consists of.
struct Terms {
  Rank first = 0;
  Rank end = 0;
};
Terms terms_at(const Schedule& s, Rank r);

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
/// All of them, in the order of the enumeration.
inline constexpr std::array kGoalKinds = {
    GoalKind::kAllReduce, GoalKind::kReduceScatter, GoalKind::kAllGather,
    GoalKind::kBroadcast, GoalKind::kReduce,        GoalKind::kGather,
    GoalKind::kScatter,   GoalKind::kScan,          GoalKind::kAllToAll};

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
