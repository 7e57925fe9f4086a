// Data parallelism with averages of parameters instead of gradients.
//
// Idea: ranks need not exchange anything in most steps. Each trains a copy of its own for `period`
// steps, and then all copies are replaced by their average. Cost per step and rank: one all-reduce
// of the parameters and of the optimizer's state, divided by the period. With a period of 1 and an
// update that is linear in the gradient (SGD, also with momentum) it is synchronous training; Adam
// is not linear. Papers: R. McDonald et al., "Distributed training strategies for the structured
// perceptron", NAACL 2010; S. Stich, "Local SGD converges fast and communicates little", ICLR 2019;
// H. McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
// AISTATS 2017 (the weights of the average).
#include <stormo/parallel/parameter_averaging.h>

#include <algorithm>
#include <string>

#include <stormo/parallel/no_axes.h>
#include <stormo/plan/limits.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;

Result<plan::StepPlan> average(const plan::StepPlan& in, int ranks, int period) {
  if (ranks < 1 || period < 1 || period > plan::kMaxPeriod) {
    return invalid_argument("parameter_averaging: " + std::to_string(ranks) + " ranks, period " +
                            std::to_string(period) +
                            "; give at least 1 rank, and a period of 1 to " +
                            std::to_string(plan::kMaxPeriod) + " steps");
  }
  STORMO_RETURN_IF_ERROR(check_no_axes(in, "parameter_averaging"));
  plan::StepPlan out = in;
  out.strategy += "+parameter_averaging";
  out.mesh.axes = {{kReplicaAxis, ranks}};
  out.parameters = out.optimizer_state = {Placement::kDiverged};
  out.frozen = {Placement::kReplicate};
  const auto agree = std::ranges::find(out.actions, ActionKind::kAgree, &Action::kind);
  if (agree == out.actions.end()) {
    return Status(Code::kBadPlan, "parameter_averaging: the plan has no agree");
  }
  agree->every = period;
  out.actions.insert(agree, {.kind = ActionKind::kAverage,
                             .range = all_parameters(in.model),
                             .axes = {kReplicaAxis},
                             .every = period});
  return out;
}

}  // namespace

Pass parameter_averaging(int ranks, int period) {
  return [=](const plan::StepPlan& in) { return average(in, ranks, period); };
}

}  // namespace stormo::parallel
