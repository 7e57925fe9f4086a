#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/comm/group/group.h>
#include <stormo/comm/selection/selection.h>

namespace stormo::comm {

struct TuneOptions {
  Duration budget = std::chrono::seconds(90);  ///< for everything
  std::uint64_t max_bytes = 16 << 20;          ///< the largest buffer that is measured
  Duration pause{0};                           ///< before every run; see bench/measure.h
};

/// What was measured for one goal and size.
struct TuneResult {
  plan::GoalKind goal = plan::GoalKind::kAllReduce;
  std::uint64_t bytes = 0;
  Choice best;
  double seconds = 0;
  double shipped_seconds = 0;  ///< of the shipped algorithm, though it may not run for so little
                               ///< (Group::posts_whole)
};

/// Measures every algorithm that suits these hosts, over sizes, and returns the rules that pick the
/// fastest. Collective: every rank calls it with the same options and returns the same. Blocks for
/// about `budget`. `report` is called on every rank as sizes are done; may be empty.
Result<Selection> tune(Group& world, const TuneOptions& options,
                       const std::function<void(const TuneResult&)>& report);

}  // namespace stormo::comm
