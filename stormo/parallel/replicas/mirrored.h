#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Synchronous data parallelism: every rank of the new mesh axis "dp" has a replica of the model
/// and computes its local batch. Between backward and update the gradients are averaged over "dp",
/// weighted, so that all replicas stay equal. `dp` is the number of ranks of the axis, at least 1.
/// Fails with kInvalidArgument for dp < 1, with kBadPlan when the mesh has "dp" already.
Pass mirrored(int dp);

}  // namespace stormo::parallel
