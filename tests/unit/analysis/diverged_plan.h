#pragma once

#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// Two segments of a parameter each, on ranks with parameters of their own. It has no actions yet.
inline plan::StepPlan diverged_plan(int ranks) {
  plan::StepPlan p;
  p.mesh = {{{"dp", ranks}}};
  p.model.segments = {
      {.name = "first", .parameters = {{"a", 10}}, .flops_per_sample = 0, .borrowed = {}},
      {.name = "second", .parameters = {{"b", 30}}, .flops_per_sample = 0, .borrowed = {}}};
  p.parameters = p.optimizer_state = {plan::Placement::kDiverged};
  p.frozen = {plan::Placement::kReplicate};
  return p;
}

}  // namespace stormo::analysis
