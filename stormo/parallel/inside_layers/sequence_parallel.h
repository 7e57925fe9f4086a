#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Sequence parallelism: the ranks of plan::kTensorAxis have parts of the positions outside of what
/// they split (StepPlan::sequence_parallel). So what they keep there is divided by their number,
/// and gradients of what they do not split are terms, which an all_reduce_unsplit adds up where
/// they are complete. Each sum inside of a segment becomes a reduce-scatter and an all-gather,
/// which send as much. Apply it after tensor_parallel() and what reduces gradients.
///
/// kInvalidArgument for a plan without this axis, and for segments that cannot have parts of the
/// positions (SegmentShape::positions), or not as many. V. Korthikanti et al., "Reducing activation
/// recomputation in large transformer models", 2022.
Pass sequence_parallel();

}  // namespace stormo::parallel
