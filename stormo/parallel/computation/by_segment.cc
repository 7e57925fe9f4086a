#include <stormo/parallel/computation/by_segment.h>

namespace stormo::parallel {

Pass by_segment() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    out.strategy += "+by_segment";
    out.actions.clear();
    for (const plan::Action& a : in.actions) {
      const plan::ActionRow& row = row_of(a.kind);
      const bool backward = row.passes_gradient() || row.adds_gradients;
      if (!backward && (!row.runs_forward() || row.recomputes())) {
        out.actions.push_back(a);
        continue;
      }
      for (int i = 0; i < a.range.size(); ++i) {
        const int segment = backward ? a.range.last - i : a.range.first + i;
        out.actions.push_back(a);
        out.actions.back().range = {segment, segment};
      }
    }
    return out;
  };
}

Pass in_two_parts() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    out.strategy += "+in_two_parts";
    out.actions.clear();
    for (const plan::Action& a : in.actions) {
      out.actions.push_back(a);
      const plan::ActionRow& row = row_of(a.kind);
      if (!row.passes_gradient() || !row.adds_gradients || a.range.first == 0) continue;
      out.actions.back().kind = plan::ActionKind::kBackwardInput;
      out.actions.push_back(a);
      out.actions.back().kind = plan::ActionKind::kBackwardWeight;
    }
    return out;
  };
}

}  // namespace stormo::parallel
