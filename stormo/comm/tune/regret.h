#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/comm/group/group.h>
#include <stormo/comm/selection/selection.h>

namespace stormo::comm {

struct RegretOptions {
  plan::GoalKind goal = plan::GoalKind::kAllReduce;
  std::vector<std::uint64_t> sizes = {1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20};
  double seconds = 4;  ///< for each size, approximately; there are at least 5 rounds
  Duration pause{0};   ///< before every run
};

/// How good the selection is for one size.
struct Regret {
  std::uint64_t bytes = 0;
  /// None if the operation runs without an algorithm, see Group::posts_whole.
  std::optional<Choice> selected;
  double selected_seconds = 0;
  std::optional<Choice> best;  ///< the fastest of `selected` and all that can run on these hosts
  double best_seconds = 0;
  double ratio() const { return selected_seconds / best_seconds; }  ///< >= 1
};

/// Compares every algorithm that can run on these hosts with what the group runs for a caller. All
/// run a few times. Then the fastest few and the selected one run in turns, and their lower
/// quartiles are compared, because other processes of the machine only increase times. A
/// collective; blocks: equal arguments and equal results on all ranks. `report` is called on every
/// rank after each size; may be empty.
Result<std::vector<Regret>> measure_regret(Group& group, const RegretOptions& options,
                                           const std::function<void(const Regret&)>& report);

}  // namespace stormo::comm
