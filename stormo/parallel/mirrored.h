#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Synchronous data parallelism: every rank of the new mesh axis "dp" holds the whole model and
/// takes its part of the batch; the weighted average of the gradients over "dp" stands between
/// backward and update, so that all replicas stay equal. `dp` >= 1; an axis of one rank is a plan
/// for one process. The pass fails with kInvalidArgument for dp < 1 and with kBadPlan when the mesh
/// has "dp" already.
Pass mirrored(int dp);

}  // namespace stormo::parallel
