#include <stormo/parallel/trust_ratios.h>

#include <cstddef>

namespace stormo::parallel {

Pass trust_ratios() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    out.strategy += "+trust_ratios";
    for (plan::Action& a : out.actions) {
      if (a.kind != plan::ActionKind::kUpdate) continue;
      a.axes.clear();
      for (std::size_t i = 0; i < out.mesh.axes.size(); ++i) {
        if (out.optimizer_state[i] == plan::Placement::kShard) {
          a.axes.push_back(out.mesh.axes[i].name);
        }
      }
    }
    return out;
  };
}

}  // namespace stormo::parallel
