#include <stormo/parallel/one_device.h>

#include <utility>

namespace stormo::parallel {

plan::StepPlan one_device(plan::ModelShape model) {
  using plan::ActionKind;
  plan::StepPlan p;
  p.strategy = "one_device";
  p.model = std::move(model);
  if (p.model.segments.empty()) return p;
  const plan::Range all = all_segments(p.model);
  p.actions = {{.kind = ActionKind::kLoad},
               {.kind = ActionKind::kForward, .range = all},
               {.kind = ActionKind::kLoss},
               {.kind = ActionKind::kBackward, .range = all},
               {.kind = ActionKind::kUpdate, .range = all_parameters(p.model)},
               {.kind = ActionKind::kAgree}};
  return p;
}

}  // namespace stormo::parallel
