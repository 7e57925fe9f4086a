#include <stormo/parallel/one_device.h>

#include <algorithm>
#include <utility>

namespace stormo::parallel {

plan::StepPlan one_device(plan::ModelShape model) {
  using plan::ActionKind;
  const int last = std::max(0, static_cast<int>(model.segments.size()) - 1);
  plan::StepPlan p;
  p.strategy = "one_device";
  p.model = std::move(model);
  p.actions = {{.kind = ActionKind::kLoad},
               {.kind = ActionKind::kForward, .first = 0, .last = last},
               {.kind = ActionKind::kLoss},
               {.kind = ActionKind::kBackward, .first = 0, .last = last},
               {.kind = ActionKind::kUpdate, .first = 0, .last = last}};
  return p;
}

}  // namespace stormo::parallel
