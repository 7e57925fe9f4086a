#pragma once

#include <cstdint>

namespace stormo::protocol {

/// Who takes means with whom where ranks mix in pairs, at any time: those of even number ask, one
/// other at a time, and those of odd number answer at once. So no ranks wait for each other.
inline bool asks(int rank) { return rank % 2 == 0; }
inline int asking_ranks(int ranks) { return (ranks + 1) / 2; }

/// Whom an asking `rank` asks behind step `step` of at least 2 ranks: one of those that answer, all
/// with the same chance. Over many steps there is a way from each rank to each other.
int rank_to_ask(std::uint64_t seed, int ranks, int rank, std::int64_t step);

}  // namespace stormo::protocol
