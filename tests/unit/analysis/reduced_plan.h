#pragma once

#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// One segment, of which replicas reduce all gradients in action 4 as `how` says.
inline plan::StepPlan reduced_plan(int ranks, std::vector<plan::ParameterShape> parameters,
                                   plan::Action how) {
  using plan::ActionKind;
  const plan::Range all{0, static_cast<int>(parameters.size()) - 1};
  plan::StepPlan p;
  p.mesh = {{{"dp", ranks}}};
  p.model.segments = {{.name = "one", .parameters = std::move(parameters), .borrowed = {}}};
  p.parameters = p.optimizer_state = p.frozen = {plan::Placement::kReplicate};
  how.kind = ActionKind::kAllReduce;
  how.range = all;
  how.axes = {"dp"};
  p.actions = {{.kind = ActionKind::kLoad},
               {.kind = ActionKind::kForward, .range = {0, 0}},
               {.kind = ActionKind::kLoss},
               {.kind = ActionKind::kBackward, .range = {0, 0}},
               std::move(how),
               {.kind = ActionKind::kUpdate, .range = all},
               {.kind = ActionKind::kAgree}};
  return p;
}

/// By that action: "all_reduce 8", in bytes.
inline std::vector<std::string> sent(const plan::StepPlan& p) {
  std::vector<std::string> out;
  for (const Collective& c : collectives_of(p, 4, {})) {
    out.push_back(std::string(to_string(c.goal)) + " " + std::to_string(c.bytes()));
  }
  return out;
}

}  // namespace stormo::analysis
