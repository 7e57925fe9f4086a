#pragma once

#include <span>

#include <stormo/schedule/builders.h>

namespace stormo::schedule {

/// The rows of the table of builders, ordered by goal and name: algorithms that reduce and those
/// that only copy. Internal to schedule/.
std::span<const Builder> reducing_builders();
std::span<const Builder> copying_builders();

/// Numbers of transfers and chunks that several rows share.
inline std::int64_t one_chunk(const ScheduleShape&) { return 1; }
inline std::int64_t chunk_per_rank(const ScheduleShape& s) { return s.ranks; }
inline std::int64_t pieces_per_rank(const ScheduleShape& s) {
  return std::int64_t{s.ranks} * s.pieces;
}
inline std::int64_t chunk_per_piece(const ScheduleShape& s) { return s.pieces; }
/// Every rank sends, or receives, one chunk of every other.
inline std::int64_t pair_each(const ScheduleShape& s) {
  return std::int64_t{s.ranks} * (s.ranks - 1);
}
inline std::int64_t pair_each_in_pieces(const ScheduleShape& s) { return pair_each(s) * s.pieces; }
inline std::int64_t once_each(const ScheduleShape& s) { return s.ranks - 1; }
inline std::int64_t once_each_in_pieces(const ScheduleShape& s) {
  return std::int64_t{s.ranks - 1} * s.pieces;
}
inline std::int64_t num_hosts(const ScheduleShape& s) {
  return static_cast<std::int64_t>(s.hosts.size());
}
/// Pieces, each with a slice for every rank of the widest host.
inline std::int64_t slices_per_piece(const ScheduleShape& s) {
  return std::int64_t{widest(s.hosts)} * s.pieces;
}
inline std::int64_t once_each_by_slice(const ScheduleShape& s) {
  return slices_per_piece(s) * (s.ranks - 1);
}

}  // namespace stormo::schedule
