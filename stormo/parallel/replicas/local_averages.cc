// Averages of the ranks of a host that are more frequent than those of all ranks.
//
// Idea: the ranks of a host meet fast, hosts do not. So those of a host average often, and all of
// them rarely: between two averages of all a host's ranks stay near each other, and nothing goes
// from host to host. Cost per step: an all-reduce inside of hosts, divided by its period, besides
// that of all ranks, divided by theirs. Paper: T. Lin et al., "Don't use large mini-batches, use
// local SGD", ICLR 2020 (hierarchical local SGD).
#include <stormo/parallel/replicas/local_averages.h>

#include <algorithm>
#include <string>

#include <stormo/parallel/axes.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::Placement;

Result<plan::StepPlan> average_hosts(const plan::StepPlan& in, int ranks, int period) {
  const auto whole =
      std::ranges::find_if(in.actions, [](const Action& a) { return row_of(a.kind).averages(); });
  const bool fits = in.mesh.axes.size() == 1 && is_diverged(in) && !is_staggered(in);
  if (whole == in.actions.end() || !fits || whole->asynchronous) {
    return Status(Code::kBadPlan,
                  "local_averages: this plan has no averages of replicas of one rank, all at once; "
                  "apply it after parameter_averaging");
  }
  const int size = in.mesh.size();
  if (ranks < 1 || size % ranks != 0 || period < 1 || whole->every % period != 0) {
    return invalid_argument("local_averages: " + std::to_string(ranks) +
                            " ranks of a host, period " + std::to_string(period) + "; of " +
                            std::to_string(size) + " ranks and an average in every " +
                            std::to_string(whole->every) + " steps give divisors");
  }
  if (period == whole->every) return in;
  plan::StepPlan out = in;
  out.strategy += "+local_averages";
  out.mesh.axes = {{kReplicaAxis, size / ranks}, {kHostAxis, ranks}};
  out.parameters = out.optimizer_state = {Placement::kDiverged, Placement::kDiverged};
  out.frozen = {Placement::kReplicate, Placement::kReplicate};
  Action of_host = *whole;
  of_host.axes = {kHostAxis};
  of_host.every = period;
  for (Action& a : out.actions) {
    if (!a.axes.empty()) a.axes = {kReplicaAxis, kHostAxis};
  }
  out.actions.insert(out.actions.begin() + (whole - in.actions.begin()), of_host);
  return out;
}

}  // namespace

Pass local_averages(int ranks, int period) {
  return [=](const plan::StepPlan& in) { return average_hosts(in, ranks, period); };
}

}  // namespace stormo::parallel
