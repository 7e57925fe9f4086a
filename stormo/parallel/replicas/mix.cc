// Decentralised data parallelism: ranks meet their neighbours only.
//
// Idea: in each step a rank exchanges parameters with a few others, whatever the number of ranks,
// and the means of neighbours draw all of them towards the mean of all. Rows and columns of the
// matrix of weights add up to 1, so the mean over all ranks is that of their updates alone.
// Averages of all ranks every `period` steps shorten the way around a long ring. Where a gradient
// is of the parameters with which a step begins, these travel while it is computed. With a constant
// learning rate ranks stay as far from each other as their gradients differ; where they track the
// mean gradient they do not. Cost per step and rank: the parameters to each neighbour, with
// tracking as much again. Papers: X. Lian et al., "Can decentralized algorithms outperform
// centralized algorithms?", NeurIPS 2017 (D-PSGD); Y. Chen et al., "Accelerating gossip SGD with
// periodic global averaging", ICML 2021; P. Di Lorenzo and G. Scutari, "NEXT: in-network nonconvex
// optimization", IEEE T-SIPN 2016, and A. Nedic et al., "Achieving geometric convergence for
// distributed optimization over time-varying graphs", SIAM J. Optimization 2017 (tracking of
// gradients).
#include <stormo/parallel/replicas/mix.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace stormo::parallel {
namespace {

using plan::Action;

/// The average of replicas that diverge.
Result<Action> average_of(const plan::StepPlan& in, const char* pass) {
  const auto average =
      std::ranges::find_if(in.actions, [](const Action& a) { return row_of(a.kind).averages(); });
  if (average != in.actions.end() && is_diverged(in)) return *average;
  return Status(Code::kBadPlan,
                std::string(pass) +
                    ": replicas of this plan do not diverge; apply it after parameter_averaging");
}

template <class Is>
std::vector<Action>::iterator first(plan::StepPlan& p, const Is& is) {
  return std::ranges::find_if(p.actions, is);
}

Result<plan::StepPlan> with_gossip(const plan::StepPlan& in, const Gossip& how) {
  STORMO_ASSIGN_OR_RETURN(const Action average, average_of(in, "gossip"));
  plan::StepPlan out = in;
  out.strategy += how.tracks_gradients ? "+gossip_tracking" : "+gossip";
  const auto update = first(out, [](const Action& a) { return makes(a, plan::Value::kUpdated); });
  if (update == out.actions.end() || !makes(out.actions.front(), plan::Value::kBatch)) {
    return Status(Code::kBadPlan, "gossip: the plan does not begin with a load, or has no update");
  }
  Action mix = {.kind = plan::ActionKind::kMix,
                .range = average.range,
                .axes = average.axes,
                .asynchronous = true,
                .algorithm = how.topology};
  Action track = mix;
  track.kind = plan::ActionKind::kTrack;
  track.asynchronous = false;
  if (how.tracks_gradients) out.actions.insert(update, std::move(track));
  out.actions.insert(out.actions.begin() + 1, std::move(mix));
  return out;
}

}  // namespace

Pass mix(const std::string& topology) {
  return [topology](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    STORMO_ASSIGN_OR_RETURN(const Action average, average_of(in, "mix"));
    plan::StepPlan out = in;
    out.strategy += "+mix";
    out.actions.insert(first(out, [](const Action& a) { return row_of(a.kind).averages(); }),
                       {.kind = plan::ActionKind::kMix,
                        .range = average.range,
                        .axes = average.axes,
                        .algorithm = topology});
    return out;
  };
}

Pass gossip(const Gossip& how) {
  return [how](const plan::StepPlan& in) { return with_gossip(in, how); };
}

}  // namespace stormo::parallel
