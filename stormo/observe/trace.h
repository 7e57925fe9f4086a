#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/event.h>
#include <stormo/base/status.h>

namespace stormo::observe {

/// One interval, with its name as an index into RankTrace::names.
struct TraceEvent {
  Lane lane = Lane::kCompute;
  std::uint32_t name = 0;
  std::int64_t step = -1;
  std::uint64_t bytes = 0;
  std::int64_t weights = -1;
  std::int64_t staleness = -1;
  std::int64_t start_ns = 0;  ///< monotonic clock of the rank's host
  std::int64_t duration_ns = 0;
  bool operator==(const TraceEvent&) const = default;
};

/// How far the clock of rank 0's host was ahead of the monotonic clock of a rank's host.
struct ClockReading {
  std::int64_t at_ns = 0;      ///< on the rank's clock
  std::int64_t offset_ns = 0;  ///< to be added to it
  bool operator==(const ClockReading&) const = default;
};

/// The events of one rank: a plain value that can be sent, stored and merged.
struct RankTrace {
  Rank rank = 0;
  std::string host{};
  /// Before the first event and after the last one; between them the offset changes evenly. No wall
  /// clock is used: those of hosts differ.
  ClockReading begin{}, end{};
  std::uint64_t dropped = 0;  ///< events lost because the buffer was full, oldest first
  std::vector<std::string> names{};
  std::vector<TraceEvent> events{};
  bool operator==(const RankTrace&) const = default;
};

/// Compact bytes of a trace, for ranks of the same version.
std::string serialize(const RankTrace& trace);
/// Inverse of serialize(); kCorrupt for anything else. Allocates at most a small multiple of
/// `bytes.size()`.
Result<RankTrace> parse_rank_trace(std::string_view bytes);

/// Writes the traces as one Chrome trace (chrome://tracing, ui.perfetto.dev): a process per rank, a
/// thread per lane, times in microseconds since the first event of all ranks, on the clock of rank
/// 0's host.
void write_chrome_trace(std::ostream& out, std::span<const RankTrace> traces);

}  // namespace stormo::observe
