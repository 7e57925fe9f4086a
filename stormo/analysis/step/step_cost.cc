#include <stormo/analysis/step/step_cost.h>

#include <algorithm>

#include <stormo/analysis/step/step_crossings.h>
#include <stormo/analysis/step/step_groups.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

AxesCost& entry(StepCost& cost, const std::vector<std::string>& axes) {
  const auto found = std::ranges::find(cost.axes, axes, &AxesCost::axes);
  return found != cost.axes.end() ? *found : *cost.axes.insert(found, {.axes = axes});
}

/// Between two stages: each rank to the rank of the other stage in its own pipeline.
void add_move(StepCost& cost, const plan::StepPlan& plan, const plan::Action& a, std::int64_t bytes,
              StepGroups& groups) {
  AxesCost& axes = entry(cost, {plan::kStageAxis});
  const auto stage = [&](int segment) {
    return static_cast<std::size_t>(plan.model.segments[static_cast<std::size_t>(segment)].stage);
  };
  const auto [from, to] = ends_of(a);
  for (const StepGroups::Group& group : groups.over(axes.axes)) {
    const Rank sender = group.ranks[stage(from)];
    const bool in_host = groups.same_host(sender, group.ranks[stage(to)]);
    const Traffic sent{.between_hosts = in_host ? 0 : bytes, .in_host = in_host ? bytes : 0};
    cost.ranks[static_cast<std::size_t>(sender)] += sent;
    axes.sent += sent;
  }
  axes.payload += bytes;
}

/// Each rank to those that read its places.
void add_crossings(StepCost& cost, const plan::StepPlan& plan, const plan::Action& a,
                   const StepSizes& sizes, const StepGroups& groups) {
  for (const Crossing& e : crossings_of(plan, a, sizes)) {
    AxesCost& axes = entry(cost, {e.axis});
    const std::vector<Rank> first = plan.mesh.group(e.messages.front().from, e.axis);
    for (const Crossing::Message& m : e.messages) {
      const bool in_host = groups.same_host(m.from, m.to);
      const Traffic sent{.between_hosts = in_host ? 0 : m.bytes, .in_host = in_host ? m.bytes : 0};
      cost.ranks[static_cast<std::size_t>(m.from)] += sent;
      axes.sent += sent;
      if (std::ranges::count(first, m.from) > 0) axes.payload += m.bytes;
    }
    ++axes.collectives;
  }
}

}  // namespace

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
    const std::int64_t bytes = server_bytes(plan, a, sizes);
    if (a.kind == plan::ActionKind::kExchange) {
      out.pulled += bytes / 2;
      out.pushed += bytes / 2;
    } else {
      (a.kind == plan::ActionKind::kPull ? out.pulled : out.pushed) += bytes;
    }
    if (const std::int64_t moved = moved_bytes(plan, a, sizes); moved > 0) {
      add_move(out, plan, a, moved, groups);
    }
    add_crossings(out, plan, a, sizes, groups);
    for (const Collective& c : collectives_of(plan, i, sizes)) {
      AxesCost& axes = entry(out, c.axes);
      const StepGroups::Group* like = nullptr;  // most groups lie on hosts as the one before them
      std::vector<Traffic> sent;
      for (const StepGroups::Group& group : groups.over(c.axes, c.stages, c.slice)) {
        if (c.only_between_hosts && group.ranks_per_host.size() == 1) continue;
        if (like == nullptr || like->ranks_per_host != group.ranks_per_host) {
          STORMO_ASSIGN_OR_RETURN(sent, traffic_of(group.ranks_per_host, c));
          like = &group;
        }
        for (std::size_t r = 0; r < sent.size(); ++r) {
          out.ranks[static_cast<std::size_t>(group.ranks[r])] += sent[r];
          axes.sent += sent[r];
        }
      }
      if (like == nullptr) continue;
      ++axes.collectives;
      axes.payload += c.bytes();
    }
  }
  return out;
}

}  // namespace stormo::analysis
