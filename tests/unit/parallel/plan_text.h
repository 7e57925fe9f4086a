// Plans as tests look at them.
#pragma once

#include <string>
#include <vector>

#include <stormo/plan/step_plan.h>

namespace stormo::parallel::test {

/// All actions in the order of the plan, as text.
inline std::vector<std::string> all_actions(const plan::StepPlan& p) {
  std::vector<std::string> out;
  for (const plan::Action& a : p.actions) out.push_back(to_text(a));
  return out;
}

}  // namespace stormo::parallel::test
