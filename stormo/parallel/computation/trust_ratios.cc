#include <stormo/parallel/computation/trust_ratios.h>

#include <cstddef>

namespace stormo::parallel {

std::vector<std::string> owner_axes(const plan::StepPlan& plan) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < plan.mesh.axes.size(); ++i) {
    const plan::Placement placed = plan.optimizer_state[i];
    const bool part = placed == plan::Placement::kShard || placed == plan::Placement::kSplit;
    if (part) out.push_back(plan.mesh.axes[i].name);
  }
  return out;
}

Pass trust_ratios() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    out.strategy += "+trust_ratios";
    for (plan::Action& a : out.actions) {
      if (makes(a, plan::Value::kUpdated)) a.axes = owner_axes(out);
    }
    return out;
  };
}

}  // namespace stormo::parallel
