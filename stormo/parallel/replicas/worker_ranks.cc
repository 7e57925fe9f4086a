// Synchronous data parallelism inside of a worker.
//
// Idea: the ranks of a host meet fast, hosts do not. So ranks that are near are one worker, which
// averages gradients in every step, and what workers exchange now and then is as small as their
// number. Cost per step: an all-reduce of the gradients over the ranks of a worker.
#include <stormo/parallel/replicas/worker_ranks.h>

#include <stormo/parallel/average_gradients.h>
#include <stormo/parallel/axes.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {

Pass worker_ranks(int ranks) {
  return [ranks](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    STORMO_RETURN_IF_ERROR(check_no_axes(in, "worker_ranks"));
    plan::StepPlan out = in;
    out.strategy += "+worker_ranks";
    STORMO_RETURN_IF_ERROR(add_inner_axis(out, "worker_ranks", {plan::kWorkerAxis, ranks},
                                          plan::Placement::kReplicate));
    average_in_worker(out);
    return out;
  };
}

}  // namespace stormo::parallel
