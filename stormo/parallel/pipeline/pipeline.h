#pragma once

#include <cstdint>
#include <vector>

#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline_schedule.h>
#include <stormo/plan/model/model_shape.h>

namespace stormo::parallel {

/// Cuts `costs` into `parts` ranges that follow each other, so that the largest sum of a range is
/// as small as possible; no range is empty. kInvalidArgument for fewer costs than parts. O(n).
Result<std::vector<plan::Range>> balanced(const std::vector<double>& costs, int parts);

struct Pipeline {
  int stages = 2;
  int chunks = 1;  ///< of segments, on each stage
  PipelineSchedule schedule = one_forward_one_backward();
  std::vector<std::int64_t> cut = {};  ///< segments of each part; empty: balanced()
  int period = 8;               ///< where steps overlap: steps after which all batches are finished
  bool weight_stashing = true;  ///< where steps overlap: see plan::StepPlan::newest_weights
};

/// Cuts the model by layers, where it is said, or in parts of equal operations (flops_per_sample)
/// or, where these are unknown, equal numbers of parameters, over a new axis plan::kStageAxis, and
/// orders the micro-batches of the plan by the schedule. Each stage has the parameters of its
/// segments and updates them; gradients of parameters that several stages read are added up. Cost
/// per step and boundary: the output of its segment and its gradient, for each micro-batch. Apply
/// it after micro_batches(), scale_loss() and clip_gradients(), before mirrored(). A schedule whose
/// steps overlap has no clipping and no loss scale.
Pass pipeline(const Pipeline& how);

}  // namespace stormo::parallel
