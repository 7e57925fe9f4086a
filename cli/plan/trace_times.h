#pragma once

#include <functional>
#include <string>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::cli {

/// What the ranks did in one step of a training, in seconds.
struct TracedStep {
  double seconds = 0;  ///< from the first Event of a rank to its last one, of the slowest rank
  /// By rank and action of the plan: its computation, without what it waited for meanwhile.
  std::vector<std::vector<double>> compute;

  double idle_share() const;
};

/// The steps of a plan in a trace of `stormo train --trace`, without the first two if there are
/// more. Left out are steps of which the trace lacks a part, and those that computed something
/// else besides, such as an evaluation. At least one; else the trace is of another plan.
Result<std::vector<TracedStep>> traced_steps(const std::string& path, const plan::StepPlan& plan);

/// Of at least one step.
TracedStep mean_of(const std::vector<TracedStep>& steps);

/// For analysis::StepTimes, while both live. Segments of a range take equally long.
std::function<double(Rank, const plan::Action&)> compute_times(const plan::StepPlan& plan,
                                                               const TracedStep& step);

}  // namespace stormo::cli
