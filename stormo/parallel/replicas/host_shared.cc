// Data parallelism with one copy of the model per host.
//
// Idea: ranks that share memory need no replica each. Every rank of a host owns a part of the
// parameters: it sums that part of the host's gradients, averages it with the owners of the same
// part on other hosts, and updates it where all see it. Inside a host the reduce-scatter is a read
// of the others' gradients and the all-gather a barrier. Cost: docs/algorithms.md. Papers: S.
// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC
// 2020, for sharded updates; Y. Zhao et al., "PyTorch FSDP", VLDB 2023, for shards inside a host
// with replicas across.
#include <stormo/parallel/replicas/host_shared.h>

#include <string>

#include <stormo/parallel/axes.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;

/// What follows the last backward. Between hosts one all-reduce over all ranks does it: it too is a
/// reduction inside hosts and then one between them, and it can overlap with backward.
Action make_final(const plan::ModelShape& model, int hosts) {
  const plan::Range all = all_parameters(model);
  if (hosts > 1)
    return {.kind = ActionKind::kAllReduce, .range = all, .axes = {kReplicaAxis, kHostAxis}};
  return {.kind = ActionKind::kShareGradients, .range = all, .axes = {kHostAxis}};
}

Result<plan::StepPlan> share(const plan::StepPlan& in, int hosts, int local) {
  if (hosts < 1 || local < 1) {
    return invalid_argument("host_shared: " + std::to_string(hosts) + " hosts of " +
                            std::to_string(local) + " ranks; give at least 1");
  }
  STORMO_RETURN_IF_ERROR(check_no_axes(in, "host_shared"));
  plan::StepPlan out = in;
  out.strategy += "+host_shared";
  if (hosts > 1) out.mesh.axes.push_back({kReplicaAxis, hosts});
  out.mesh.axes.push_back({kHostAxis, local});
  if (hosts > 1) {
    out.parameters = {Placement::kReplicate, Placement::kShared};
    out.optimizer_state = {Placement::kReplicate, Placement::kShard};
  } else {
    out.parameters = {Placement::kShared};
    out.optimizer_state = {Placement::kShard};
  }
  out.frozen.assign(out.mesh.axes.size(), Placement::kReplicate);  // each rank has its own
  out.actions.clear();
  for (const Action& a : in.actions) {
    const bool last_batch = a.micro_batch + 1 == in.micro_batches;
    out.actions.push_back(a);
    if (makes(a, plan::Value::kNorm)) out.actions.back().axes = {kHostAxis};
    if (row_of(a.kind).adds_gradients && last_batch && a.range.first == 0) {
      out.actions.push_back(make_final(in.model, hosts));
    }
    if (makes(a, plan::Value::kUpdated)) {
      out.actions.push_back(
          {.kind = ActionKind::kShareParameters, .range = a.range, .axes = {kHostAxis}});
    }
  }
  return out;
}

}  // namespace

Pass host_shared(int hosts, int local) {
  return [=](const plan::StepPlan& in) { return share(in, hosts, local); };
}

}  // namespace stormo::parallel
