#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <stormo/base/ids.h>

namespace stormo::protocol {

// Members of an elastic job that change their states by themselves, and average them now and then,
// behind a step (docs/adr/0040-elastic-replicas-that-differ.md).

/// An average over the members of an epoch. They make one at most behind a step.
struct AverageId {
  Epoch epoch = 0;
  std::uint64_t step = 0;
  bool operator==(const AverageId&) const = default;
};

/// The averages that a member has taken.
struct AverageHistory {
  AverageId last = {};
  AverageId before = {};  ///< the last one behind an earlier step

  void take(const AverageId& average);
  /// Stands for the state after a step, and before an average behind it; never 0. Equal on all
  /// members: what differs between them are the steps since the average that it is made of.
  std::uint64_t hash_after(std::uint64_t step) const;
};

/// What members say of the average behind the last step before an epoch, as numbers: these two, or
/// which one they have taken.
inline constexpr std::int64_t kHasNoState = -1, kHasNotTaken = 0;
std::int64_t taken_behind(std::uint64_t step, const AverageHistory& history);
AverageId average_of(std::int64_t taken, std::uint64_t step);

/// What becomes of it.
struct Settlement {
  bool is_made_anew = false;  ///< by all: nobody that is left has taken it
  /// All that have the state take what this one has; empty: they have it.
  std::optional<std::size_t> from = {};
};

/// `taken`: by rank. Whoever has taken an average has seen all of it. So where one has, it counts,
/// whatever the others have; where none has, it has changed nothing.
Settlement settle(std::span<const std::int64_t> taken);

}  // namespace stormo::protocol
