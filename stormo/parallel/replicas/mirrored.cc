// Synchronous data parallelism.
//
// Idea: replicas see different samples and apply the same averaged gradient. The all-reduce of a
// range of segments follows their backward at once, the earliest place it can have: a plan whose
// backward comes in several pieces overlaps reduction and computation by order alone. Cost per
// step: one all-reduce over all parameters; docs/algorithms.md has its bytes. Paper: J. Dean et
// al., "Large scale distributed deep networks", NIPS 2012, for data parallelism; P. Goyal et al.,
// "Accurate, large minibatch SGD", 2017, for its synchronous form.
#include <stormo/parallel/replicas/mirrored.h>

#include <string>
#include <utility>

#include <stormo/parallel/average_gradients.h>
#include <stormo/parallel/axes.h>

namespace stormo::parallel {
namespace {

Result<plan::StepPlan> mirror(const plan::StepPlan& in, int dp) {
  if (dp < 1) {
    return invalid_argument("mirrored: " + std::to_string(dp) + " replicas; give at least 1");
  }
  if (in.mesh.find(kReplicaAxis) >= 0) {
    return Status(Code::kBadPlan, "mirrored: the mesh already has an axis 'dp'; apply it once");
  }
  plan::StepPlan out = in;
  out.strategy += "+mirrored";
  // outermost: ranks of one replica stay neighbours, on one host where possible
  out.mesh.axes.insert(out.mesh.axes.begin(), {kReplicaAxis, dp});
  out.parameters.insert(out.parameters.begin(), plan::Placement::kReplicate);
  out.frozen.insert(out.frozen.begin(), plan::Placement::kReplicate);
  out.optimizer_state.insert(out.optimizer_state.begin(), plan::Placement::kReplicate);
  average_gradients(out, kReplicaAxis);
  return out;
}

}  // namespace

Pass mirrored(int dp) {
  return [dp](const plan::StepPlan& in) { return mirror(in, dp); };
}

}  // namespace stormo::parallel
