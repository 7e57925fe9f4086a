#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Cuts the batch of each rank into `n` micro-batches, whose gradients add up (gradient
/// accumulation): activations of one at a time. Before passes that reduce gradients. Fails with
/// kInvalidArgument for n < 1 or > 65,536, with kBadPlan when the batch is cut already.
Pass micro_batches(int n);

}  // namespace stormo::parallel
