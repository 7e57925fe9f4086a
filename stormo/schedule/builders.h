#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/plan/schedule.h>
#include <stormo/schedule/binomial.h>
#include <stormo/schedule/direct.h>
#include <stormo/schedule/hierarchical.h>
#include <stormo/schedule/ring.h>
#include <stormo/schedule/star.h>

namespace stormo::schedule {

/// One algorithm, as the program, the documentation and the tests list it.
struct Builder {
  std::string_view name;         ///< "ring_all_reduce"; also Schedule::name
  std::string_view description;  ///< one line
  plan::GoalKind goal;
  bool takes_hosts = false;  ///< else `hosts` is ignored
  bool takes_root = false;   ///< else `root` is ignored
  /// For docs/algorithms.md; n ranks, h hosts, m = n/h, a buffer of K bytes, what the busiest rank
  /// sends.
  std::string_view rounds_formula;
  std::string_view bytes_formula;
  /// Transfers of the schedule: known before it is built, so that no builder exhausts memory.
  std::int64_t (*num_transfers)(int ranks, int hosts);
  /// Called by build() below with checked arguments.
  plan::Schedule (*make)(int ranks, int hosts, Rank root);

  /// kInvalidArgument when ranks, hosts or root are out of range, hosts does not divide ranks, or
  /// the schedule would have more than plan::kMaxTransfers transfers.
  Result<plan::Schedule> build(int ranks, int hosts = 1, Rank root = 0) const;
};

/// All algorithms, ordered by goal and name.
std::span<const Builder> builders();

/// The builder of that name; kNotFound with the nearest name otherwise.
Result<const Builder*> find_builder(std::string_view name);

}  // namespace stormo::schedule
