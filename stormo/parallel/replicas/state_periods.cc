// Averages of the optimizer's moments that are rarer than those of the parameters.
//
// Idea: the first moment of Adam changes more slowly than the parameters, and the second one more
// slowly still. So they need not be averaged as often, and what ranks send is mostly parameters.
// With K bytes of each, averages of the parameters in one of every p steps, and of slot i in one of
// every p_i, a step sends 2(N-1)/N K (1/p + sum of 1/p_i) on average. Multiples of p are enough,
// and let nobody wait more often. Paper: A. Iacob et al., "DES-LOC: desynced low communication
// adaptive optimizers for training foundation models", 2025.
#include <stormo/parallel/replicas/state_periods.h>

#include <algorithm>
#include <cstddef>

#include <stormo/base/requirements.h>
#include <stormo/plan/limits.h>

namespace stormo::parallel {

using plan::Action;

std::string wrong_with_state_periods(const std::vector<std::int64_t>& periods, int period) {
  std::string others;  // that are no multiples
  for (const std::int64_t own : periods) {
    if (own >= 1 && own <= plan::kMaxPeriod && own % period == 0) continue;
    others += (others.empty() ? "" : ", ") + std::to_string(own);
  }
  Requirements require;
  require(others.empty(),
          "averages a slot of the optimizer in some of the steps in which it averages parameters: "
          "in state_periods give multiples of period " +
              std::to_string(period) + ", up to " + std::to_string(plan::kMaxPeriod) + ", not " +
              others);
  require(periods.size() <= plan::kMaxSlots,
          "has at most " + std::to_string(plan::kMaxSlots) +
              " slots of an optimizer: give fewer state_periods");
  return require.wrong();
}

Pass state_periods(const std::vector<std::int64_t>& periods) {
  return [periods](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    const auto average = std::ranges::find_if(
        out.actions, [](const Action& a) { return row_of(a.kind).averages_state; });
    if (average == out.actions.end() || is_remote(in)) {
      return Status(Code::kBadPlan,
                    "state_periods: this plan averages no state of the optimizer on its ranks; "
                    "apply it after parameter_averaging with state");
    }
    const std::string wrong = wrong_with_state_periods(periods, average->every);
    if (!wrong.empty()) return invalid_argument("state_periods: the plan " + wrong);
    out.strategy += "+state_periods";
    average->kind = plan::ActionKind::kAverageParameters;
    std::vector<Action> of_slots;
    for (std::size_t slot = 0; slot < periods.size(); ++slot) {
      of_slots.push_back({.kind = plan::ActionKind::kAverageState,
                          .range = average->range,
                          .axes = average->axes,
                          .every = static_cast<int>(periods[slot]),
                          .slot = static_cast<int>(slot)});
    }
    out.actions.insert(average + 1, of_slots.begin(), of_slots.end());
    return out;
  };
}

}  // namespace stormo::parallel
