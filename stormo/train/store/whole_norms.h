#pragma once

#include <functional>
#include <string>

#include <stormo/plan/step_plan.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// How a rank takes part in the norms of whole parameters, which LARS and LAMB need.
struct WholeNorms {
  SumOverRanks sum;  ///< over parallel::owner_axes(); empty: each rank has whole parameters
  /// Whether the norms of this rank's part of a parameter, by its name, add to the sum. Of a
  /// parameter that is not split, one of the ranks that compute layers together adds its own.
  std::function<bool(const std::string&)> counts;
};

/// `groups` is borrowed, and has a group over parallel::owner_axes() by the first sum. `plan` is
/// that of all ranks.
WholeNorms whole_norms(const AxisGroups& groups, const plan::StepPlan& plan);

}  // namespace stormo::train
