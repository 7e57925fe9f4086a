#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Tensor parallelism: `ranks` ranks compute each layer together, each with its slices of the
/// parameters that the model splits (plan::Split); other parameters are whole on each of them. What
/// they add up inside of a segment is stated by it (plan::InnerSums). The axis plan::kTensorAxis
/// becomes the innermost one. Applied after pipeline(), and before or after mirrored().
///
/// kInvalidArgument for a model without split parameters, for heads of attention that `ranks` do
/// not divide, and for parameters with too few units. M. Shoeybi et al., "Megatron-LM: training
/// multi-billion parameter language models using model parallelism", 2019.
Pass tensor_parallel(int ranks);

}  // namespace stormo::parallel
