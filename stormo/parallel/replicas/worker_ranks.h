#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// A replica, or worker, becomes as many neighbouring ranks, the innermost axis plan::kWorkerAxis,
/// which train it together: each on samples of its own, with the average of their gradients. To be
/// applied before the pass that lets workers exchange, such as parameter_averaging(). Fails with
/// kInvalidArgument for fewer than 2 ranks, with kBadPlan where the plan has several ranks already.
Pass worker_ranks(int ranks);

}  // namespace stormo::parallel
