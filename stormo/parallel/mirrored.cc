// Synchronous data parallelism.
//
// Idea: replicas see different samples and apply the same averaged gradient. The all-reduce of a
// range of segments follows their backward at once, the earliest place it can have: a plan whose
// backward comes in several pieces overlaps reduction and computation by order alone. Cost per
// step: one all-reduce over all parameters; docs/algorithms.md has its bytes. Paper: J. Dean et
// al., "Large scale distributed deep networks", NIPS 2012, for data parallelism; P. Goyal et al.,
// "Accurate, large minibatch SGD", 2017, for its synchronous form.
#include <stormo/parallel/mirrored.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace stormo::parallel {
namespace {

constexpr const char* kAxis = "dp";

/// By parameter: the last action that adds to its gradients; 0 if none does.
std::vector<std::size_t> last_additions(const plan::StepPlan& in) {
  std::vector<std::size_t> out(static_cast<std::size_t>(num_parameters(in.model)));
  const auto reads = parameters_read(in.model);
  for (std::size_t i = 0; i < in.actions.size(); ++i) {
    const plan::Action& a = in.actions[i];
    if (!adds_gradients(a.kind)) continue;
    for (int s = a.range.first; s <= a.range.last; ++s) {
      for (const int p : reads[static_cast<std::size_t>(s)]) out[static_cast<std::size_t>(p)] = i;
    }
  }
  return out;
}

/// Averages gradients where they are complete.
Result<plan::StepPlan> mirror(const plan::StepPlan& in, int dp) {
  if (dp < 1) {
    return invalid_argument("mirrored: " + std::to_string(dp) + " replicas; give at least 1");
  }
  if (in.mesh.find(kAxis) >= 0) {
    return Status(Code::kBadPlan, "mirrored: the mesh already has an axis 'dp'; apply it once");
  }
  plan::StepPlan out = in;
  out.strategy += "+mirrored";
  // outermost: ranks of one replica stay neighbours, on one host where possible
  out.mesh.axes.insert(out.mesh.axes.begin(), {kAxis, dp});
  out.parameters.insert(out.parameters.begin(), plan::Placement::kReplicate);
  out.frozen.insert(out.frozen.begin(), plan::Placement::kReplicate);
  out.optimizer_state.insert(out.optimizer_state.begin(), plan::Placement::kReplicate);
  out.actions.clear();
  const std::vector<std::size_t> last = last_additions(in);
  std::map<std::size_t, std::set<std::pair<int, int>>> complete;  // ranges, by action
  for (const plan::Action& a : in.actions) {
    if (!adds_gradients(a.kind)) continue;
    const plan::Range own = parameters_of(in.model, a.range);
    if (own.size() == 0) continue;
    const auto end = last.begin() + own.last + 1;
    complete[*std::max_element(last.begin() + own.first, end)].insert({own.first, own.last});
  }
  for (std::size_t i = 0; i < in.actions.size(); ++i) {
    out.actions.push_back(in.actions[i]);
    for (const auto& [first, end] : complete[i]) {
      out.actions.push_back(
          {.kind = plan::ActionKind::kAllReduce, .range = {first, end}, .axes = {kAxis}});
    }
  }
  return out;
}

}  // namespace

Pass mirrored(int dp) {
  return [dp](const plan::StepPlan& in) { return mirror(in, dp); };
}

}  // namespace stormo::parallel
