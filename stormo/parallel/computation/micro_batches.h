#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Divides the local batch into `n` micro-batches, whose gradients are added up (gradient
/// accumulation), so that only the activations of one are in memory. Apply it before passes that
/// reduce gradients. Fails with kInvalidArgument for n < 1 or > 65,536, with kBadPlan when the plan
/// has micro-batches already.
Pass micro_batches(int n);

}  // namespace stormo::parallel
