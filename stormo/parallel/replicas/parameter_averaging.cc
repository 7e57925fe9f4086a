// Data parallelism with averages of parameters instead of gradients.
//
// Idea: ranks need not exchange anything in most steps. Each trains a copy of its own for `period`
// steps, and then all copies are replaced by their average. Cost per step and rank: one all-reduce
// of the parameters and of the optimizer's state, divided by the period. With a period of 1 and an
// update that is linear in the gradient (SGD, also with momentum) it is synchronous training; Adam
// is not linear. The optimizer's state may stay with each rank: then an all-reduce is of the
// parameters alone. A replica may be cut into stages and slices: then each rank has an average with
// the ranks that have the same part of the others. Or it is a worker of several ranks, which
// average their gradients in every step. Papers: R. McDonald et al., "Distributed training
// strategies for the structured perceptron", NAACL 2010; S. Stich, "Local SGD converges fast and
// communicates little", ICLR 2019; H. McMahan et al., "Communication-efficient learning of deep
// networks from decentralized data", AISTATS 2017 (the weights of the average).
#include <stormo/parallel/replicas/parameter_averaging.h>

#include <algorithm>
#include <string>
#include <vector>

#include <stormo/parallel/axes.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::Placement;

/// Replicas may be cut, or be workers of several ranks.
Status check(const plan::StepPlan& in) {
  std::vector<std::string> others = data_axes(in.mesh);
  std::erase(others, plan::kWorkerAxis);
  if (!others.empty()) {
    return Status(Code::kBadPlan, "parameter_averaging: the mesh has an axis '" + others.front() +
                                      "', but replicas are cut into stages and slices only, or "
                                      "workers of several ranks; apply it once, behind pipeline, "
                                      "tensor_parallel and worker_ranks");
  }
  if (longest_delay(in) == 0) return {};
  return Status(
      Code::kBadPlan,
      "parameter_averaging: steps overlap, so no step ends with all of its updates; use a "
      "schedule whose steps do not, such as '1f1b'");
}

Result<plan::StepPlan> average(const plan::StepPlan& in, int ranks, int period, bool state) {
  if (ranks < 1 || period < 1 || period > plan::kMaxPeriod) {
    return invalid_argument("parameter_averaging: " + std::to_string(ranks) + " ranks, period " +
                            std::to_string(period) +
                            "; give at least 1 rank, and a period of 1 to " +
                            std::to_string(plan::kMaxPeriod) + " steps");
  }
  STORMO_RETURN_IF_ERROR(check(in));
  plan::StepPlan out = in;
  out.strategy += "+parameter_averaging";
  // outermost: ranks of one replica stay neighbours, on one host where possible
  out.mesh.axes.insert(out.mesh.axes.begin(), {kReplicaAxis, ranks});
  out.parameters.insert(out.parameters.begin(), Placement::kDiverged);
  out.optimizer_state.insert(out.optimizer_state.begin(), Placement::kDiverged);
  out.frozen.insert(out.frozen.begin(), Placement::kReplicate);
  const auto agree =
      std::ranges::find_if(out.actions, [](const Action& a) { return row_of(a.kind).all_batches; });
  if (agree == out.actions.end()) {
    return Status(Code::kBadPlan, "parameter_averaging: the plan has no agree");
  }
  agree->every = period;
  const auto kind = state ? plan::ActionKind::kAverage : plan::ActionKind::kAverageParameters;
  std::vector<std::string> axes = {kReplicaAxis};
  if (in.mesh.find(plan::kWorkerAxis) >= 0) axes.emplace_back(plan::kWorkerAxis);
  out.actions.insert(
      agree, {.kind = kind, .range = all_parameters(in.model), .axes = axes, .every = period});
  return out;
}

}  // namespace

Pass parameter_averaging(int ranks, int period, bool state) {
  return [=](const plan::StepPlan& in) { return average(in, ranks, period, state); };
}

}  // namespace stormo::parallel
