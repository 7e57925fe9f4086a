// Decentralised data parallelism: ranks meet their neighbours only.
//
// Idea: in each step a rank exchanges parameters with two others, whatever the number of ranks, and
// the means of neighbours draw all of them towards the mean of all. The weights are 1/3 (with two
// ranks 1/2), so the matrix of weights is symmetric and doubly stochastic, and the mean over all
// ranks is that of their updates alone. Averages of all ranks every `period` steps shorten the way
// around a long ring. Cost per step and rank: the parameters to each of two neighbours. Papers: X.
// Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017
// (D-PSGD); Y. Chen et al., "Accelerating gossip SGD with periodic global averaging", ICML 2021.
#include <stormo/parallel/replicas/mix.h>

#include <algorithm>

namespace stormo::parallel {

Pass mix() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    const auto average = std::ranges::find_if(
        out.actions, [](const plan::Action& a) { return row_of(a.kind).averages(); });
    if (average == out.actions.end() || !is_diverged(in)) {
      return Status(
          Code::kBadPlan,
          "mix: replicas of this plan do not diverge; apply it after parameter_averaging");
    }
    out.strategy += "+mix";
    out.actions.insert(
        average, {.kind = plan::ActionKind::kMix, .range = average->range, .axes = average->axes});
    return out;
  };
}

}  // namespace stormo::parallel
