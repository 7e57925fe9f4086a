#pragma once

#include <cstddef>
#include <cstdint>

namespace stormo::plan {

/// Upper limits of parsers and builders, checked before memory is allocated for that number of
/// items.
inline constexpr int kMaxRanks = 65536;
inline constexpr int kMaxChunks = 65536;
inline constexpr int kMaxRounds = 1 << 20;
/// About 1 GiB of Transfers: a ring all-reduce of 4,096 ranks fits, one of 65,536 does not.
inline constexpr std::int64_t kMaxTransfers = std::int64_t{1} << 26;
inline constexpr int kMaxAxes = 16;
inline constexpr int kMaxSegments = 1 << 16;
inline constexpr int kMaxPeriod = 1 << 20;  // steps
inline constexpr int kMaxDelay = 1 << 16;   // steps
inline constexpr int kMaxParameters = 1 << 20;
inline constexpr int kMaxSlots = 16;                        // of an optimizer
inline constexpr int kMaxDimensions = 64;                   // of a parameter
inline constexpr std::size_t kMaxInnerSums = 1024;          // of a segment
inline constexpr std::size_t kMaxStateCrossings = 1 << 16;  // of an exchange
inline constexpr int kMaxExtent = 1 << 20;                  // channels, rows or columns of a map
inline constexpr int kMaxActions = 1 << 20;

}  // namespace stormo::plan
