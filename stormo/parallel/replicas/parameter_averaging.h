#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Parameter averaging (local SGD): every replica, a coordinate of the new mesh axis "dp", trains
/// by itself, on its part of the data. After every `period` steps parameters and optimizer state
/// are replaced by their averages, and the ranks agree on loss and stop. A replica is one rank, or
/// the ranks of the stages and slices that pipeline() and tensor_parallel() have cut it into, each
/// of which has an average of its own, or those of a worker, see worker_ranks(). Without `state`
/// only the parameters are averaged, and each rank keeps its own state of the optimizer. Fails with
/// kInvalidArgument for ranks < 1 or period < 1, with kBadPlan when the mesh has other axes or
/// steps overlap.
Pass parameter_averaging(int ranks, int period, bool state = true);

}  // namespace stormo::parallel
