#include <stormo/comm/selection/step_price.h>

#include <algorithm>

#include <stormo/base/check.h>
#include <stormo/plan/project.h>

namespace stormo::comm {
namespace {

/// Steps in which parameters are averaged once; 1: the simulation is of all steps of a period.
int steps_of_average(const plan::StepPlan& p) {
  if (is_staggered(p)) return 1;
  const auto averages = [&p](const plan::Action& a) {
    return row_of(a.kind).averages() && !averages_some(p, a);
  };
  const auto found = std::ranges::find_if(p.actions, averages);
  return found == p.actions.end() ? 1 : std::max(1, found->every);
}

/// Takes averages of slots of the optimizer, and among some ranks, away from a step of `seconds`,
/// and returns what they add to a step on average. What is left of both is that of other actions.
Result<double> price_of_others(StepModel& model, StepInput& step, double& seconds) {
  double added = 0;
  const auto is_other = [&step](const plan::Action& a) {
    return row_of(a.kind).averages_slot || averages_some(step.plan, a);
  };
  std::vector<plan::Action>& actions = step.plan.actions;
  for (auto a = std::ranges::find_if(actions, is_other); a != actions.end();
       a = std::ranges::find_if(actions, is_other)) {
    const int every = a->every;
    actions.erase(a);
    STORMO_ASSIGN_OR_RETURN(const analysis::StepSimulation rest,
                            model.simulate(step, analysis::Timeline::kDrop));
    added += (seconds - rest.seconds) / every;
    seconds = rest.seconds;
  }
  return added;
}

}  // namespace

Result<StepPrice> price_of(StepModel& model, const StepInput& step, double seconds) {
  STORMO_ASSIGN_OR_RETURN(const analysis::StepSimulation alone, model.without_communication(step));
  StepInput rest = step;
  STORMO_ASSIGN_OR_RETURN(double added, price_of_others(model, rest, seconds));
  added += (seconds - alone.seconds) / steps_of_average(step.plan);
  return StepPrice{.seconds = alone.seconds + added, .alone = alone.seconds};
}

std::size_t least_lossy(std::span<const StepPrice> ways) {
  STORMO_CHECK(!ways.empty(), "least_lossy: nothing to choose from");
  auto taken = std::ranges::find_if(ways, hides);
  if (taken == ways.end()) taken = std::ranges::min_element(ways, {}, &StepPrice::seconds);
  return static_cast<std::size_t>(taken - ways.begin());
}

}  // namespace stormo::comm
