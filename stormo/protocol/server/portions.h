#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <stormo/base/clock.h>

namespace stormo::protocol {

// Who computes which portion of a batch. Workers that are fast take more portions. When every
// portion has a worker, one that is free takes a copy of a portion that is late: the first result
// counts. Dean et al., "Large scale distributed deep networks" (Sandblaster), NIPS 2012, section
// 4.2, after the backup tasks of MapReduce (Dean and Ghemawat, OSDI 2004).
//
// Pure functions, so that the same ones run in memory that processes share, and in virtual time.

/// A portion as all workers see it.
struct PortionState {
  /// The batch whose portion is not yet computed; all batches before it are done.
  std::uint32_t batch = 0;
  /// Workers that compute it now, from 0; -1: none. The second one has a backup copy.
  int first = -1, second = -1;
  bool operator==(const PortionState&) const = default;

  /// As one word, for at most 65,534 workers.
  static PortionState unpack(std::uint64_t word);
  std::uint64_t pack() const;
};

struct PortionView {
  PortionState state;
  TimePoint begun{};  ///< when `first` took it
};

/// A portion is late when it takes longer than this times the usual duration.
inline constexpr double kLatePortion = 2;

struct PortionChoice {
  std::optional<std::size_t> portion = {};
  /// If there is none: when a copy of one may be taken, unless its result comes before.
  std::optional<TimePoint> again = {};
};

/// What a worker without work does: a portion of `batch` that nobody computes, else a copy of the
/// one that is most late. `usual`: of a portion; zero: nothing is known, and there are no copies.
PortionChoice choose_portion(std::span<const PortionView> portions, std::uint32_t batch, int worker,
                             TimePoint now, Duration usual);

/// The portion with the worker among those that compute it.
PortionState taken(PortionState state, int worker);
/// Without the worker, which gives it up or is lost.
PortionState given_up(PortionState state, int worker);
/// Computed.
PortionState done(const PortionState& state);

}  // namespace stormo::protocol
