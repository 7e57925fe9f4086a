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

/// Two segments, each with parameters of these names behind its own.
inline plan::ModelShape two_segments(const std::vector<plan::ParameterShape>& parameters) {
  plan::ModelShape out;
  for (const std::string name : {"first", "second"}) {
    out.segments.push_back({.name = name, .parameters = parameters});
    for (plan::ParameterShape& p : out.segments.back().parameters) p.name = name + p.name;
  }
  return out;
}

}  // namespace stormo::parallel::test
