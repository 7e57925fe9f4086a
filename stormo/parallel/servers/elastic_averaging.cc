// Data parallelism in which workers are drawn to a common centre.
//
// Idea: each worker trains a copy x of its own, and servers hold a centre c without an optimizer.
// Now and then a worker exchanges: with d = alpha (x - c), x -= d and c += d. So the copies may
// differ and explore, but not without bound, and nobody waits. The gradient of such a step is that
// of x before the exchange, and moves x after it. With momentum it is EAMSGD. Cost per step and
// worker: the bytes of the parameters once in each direction, divided by the period. Paper:
// S. Zhang, A. Choromanska, Y. LeCun, "Deep learning with elastic averaging SGD", NIPS 2015,
// algorithms 1 and 2.
#include <stormo/parallel/servers/elastic_averaging.h>

#include <algorithm>
#include <string>

#include <stormo/parallel/axes.h>
#include <stormo/plan/limits.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::Placement;

Result<plan::StepPlan> draw_to_centre(const plan::StepPlan& in, int workers, int period) {
  if (workers < 1 || period < 1 || period > plan::kMaxPeriod) {
    return invalid_argument("elastic_averaging: " + std::to_string(workers) + " workers, period " +
                            std::to_string(period) +
                            "; give at least 1 worker, and a period of 1 to " +
                            std::to_string(plan::kMaxPeriod) + " steps");
  }
  STORMO_RETURN_IF_ERROR(check_no_axes(in, "elastic_averaging"));
  plan::StepPlan out = in;
  out.strategy += "+elastic_averaging";
  out.mesh.axes = {{kReplicaAxis, workers}};
  out.parameters = out.optimizer_state = {Placement::kDiverged};
  out.frozen = {Placement::kReplicate};
  std::erase_if(out.actions, [](const Action& a) { return row_of(a.kind).all_batches; });
  const auto update = std::ranges::find_if(
      out.actions, [](const Action& a) { return makes(a, plan::Value::kUpdated); });
  out.actions.insert(update, {.kind = plan::ActionKind::kElasticAverage,
                              .range = all_parameters(in.model),
                              .axes = {kReplicaAxis},
                              .every = period});
  return out;
}

}  // namespace

Pass elastic_averaging(int workers, int period) {
  return [=](const plan::StepPlan& in) { return draw_to_centre(in, workers, period); };
}

}  // namespace stormo::parallel
