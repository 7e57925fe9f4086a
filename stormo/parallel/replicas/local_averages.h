#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Replicas of one rank, on hosts of `ranks` each, are averaged by the ranks of a host in one of
/// every `period` steps, and by all of them as before: these averages are in some of those steps,
/// behind those of a host. Where both are in the same steps the plan stays as it is. Apply it after
/// parameter_averaging(). Fails with kInvalidArgument where the ranks are no multiple of `ranks`,
/// or the steps from one average of all to the next none of `period`; with kBadPlan for another
/// plan.
Pass local_averages(int ranks, int period);

}  // namespace stormo::parallel
