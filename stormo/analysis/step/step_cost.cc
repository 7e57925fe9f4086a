#include <stormo/analysis/step/step_cost.h>

#include <algorithm>

#include <stormo/analysis/step/step_groups.h>

namespace stormo::analysis {

Traffic StepCost::total() const {
  Traffic sum;
  for (const Traffic& t : ranks) sum += t;
  return sum;
}

Result<StepCost> cost(const plan::StepPlan& plan, const std::vector<int>& ranks_per_host,
                      const StepSizes& sizes, const TrafficOf& traffic_of) {
  StepGroups groups(plan.mesh, ranks_per_host);
  StepCost out;
  out.ranks.resize(static_cast<std::size_t>(plan.mesh.size()));
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const plan::Action& a = plan.actions[i];
    const std::int64_t bytes = server_bytes(plan, a);
    if (a.kind == plan::ActionKind::kExchange) {
      out.pulled += bytes / 2;
      out.pushed += bytes / 2;
    } else {
      (a.kind == plan::ActionKind::kPull ? out.pulled : out.pushed) += bytes;
    }
    for (const Collective& c : collectives_of(plan, i, sizes)) {
      auto axes = std::ranges::find(out.axes, c.axes, &AxesCost::axes);
      if (axes == out.axes.end()) axes = out.axes.insert(axes, {.axes = c.axes});
      const StepGroups::Group* like = nullptr;  // most groups lie on hosts as the one before them
      std::vector<Traffic> sent;
      for (const StepGroups::Group& group : groups.over(c.axes)) {
        if (c.only_between_hosts && group.ranks_per_host.size() == 1) continue;
        if (like == nullptr || like->ranks_per_host != group.ranks_per_host) {
          STORMO_ASSIGN_OR_RETURN(sent, traffic_of(group.ranks_per_host, c));
          like = &group;
        }
        for (std::size_t r = 0; r < sent.size(); ++r) {
          out.ranks[static_cast<std::size_t>(group.ranks[r])] += sent[r];
          axes->sent += sent[r];
        }
      }
      if (like == nullptr) continue;
      ++axes->collectives;
      axes->payload += c.bytes();
    }
  }
  return out;
}

}  // namespace stormo::analysis
