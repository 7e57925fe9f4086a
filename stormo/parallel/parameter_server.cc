// Data parallelism with parameter servers.
//
// Idea: servers keep the parameters and apply the gradients that workers send. A worker needs no
// optimizer state, and a slow one holds up nobody where the policy of the servers allows for old
// parameters. Cost per step and worker: the bytes of the parameters once in each direction. Papers:
// J. Dean et al., "Large scale distributed deep networks", NIPS 2012; M. Li et al., "Scaling
// distributed machine learning with the parameter server", OSDI 2014; Q. Ho et al., "More effective
// distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
#include <stormo/parallel/parameter_server.h>

#include <algorithm>
#include <string>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;

constexpr const char* kAxis = "dp";

Result<plan::StepPlan> serve(const plan::StepPlan& in, int workers) {
  if (workers < 1) {
    return invalid_argument("parameter_server: " + std::to_string(workers) +
                            " workers; give at least 1");
  }
  if (!in.mesh.axes.empty()) {
    return Status(
        Code::kBadPlan,
        "parameter_server: the mesh has axes already; apply it once, and no other strategy");
  }
  plan::StepPlan out = in;
  out.strategy += "+parameter_server";
  out.mesh.axes = {{kAxis, workers}};
  out.parameters = out.optimizer_state = {Placement::kRemote};
  out.frozen = {Placement::kReplicate};  // each worker has its own
  std::erase_if(out.actions, [](const Action& a) { return a.kind == ActionKind::kAgree; });
  for (Action& a : out.actions) {
    if (a.kind != ActionKind::kUpdate) continue;
    a.kind = ActionKind::kPush;
    a.axes = {kAxis};
  }
  const auto forward = std::ranges::find(out.actions, ActionKind::kForward, &Action::kind);
  out.actions.insert(
      forward, {.kind = ActionKind::kPull, .range = all_parameters(in.model), .axes = {kAxis}});
  return out;
}

}  // namespace

Pass parameter_server(int workers) {
  return [workers](const plan::StepPlan& in) { return serve(in, workers); };
}

}  // namespace stormo::parallel
