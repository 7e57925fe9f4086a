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
  double default_seconds = 0;  ///< of the default algorithm, though it may not run for so little
                               ///< (Group::posts_whole)
};

/// Measures every algorithm that can run on these hosts, for several sizes, and returns rules that
/// choose the fastest. A collective: equal options and equal results on all ranks. Blocks for about
/// `budget`. `report` is called on every rank after each size; may be empty.
Result<Selection> tune(Group& world, const TuneOptions& options,
                       const std::function<void(const TuneResult&)>& report);

}  // namespace stormo::comm
