#include <stormo/analysis/step/step_cost.h>

#include <algorithm>
#include <utility>

#include <stormo/analysis/step/assigned.h>
#include <stormo/analysis/step/step_groups.h>
#include <stormo/analysis/transfer/transfers.h>
#include <stormo/base/index.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

AxesCost& entry(StepCost& cost, const std::vector<std::string>& axes) {
  const auto found = std::ranges::find(cost.axes, axes, &AxesCost::axes);
  return found != cost.axes.end() ? *found : *cost.axes.insert(found, {.axes = axes});
}

/// Adds up the transfers of a plan's actions.
class Adder {
 public:
  Adder(const plan::StepPlan& plan, const std::vector<int>& ranks_per_host,
        const TrafficOf& traffic_of)
      : plan_(plan), groups_(plan.mesh, ranks_per_host), traffic_of_(traffic_of) {
    out_.ranks.resize(static_cast<std::size_t>(plan.mesh.size()));
    out_.mean.resize(out_.ranks.size());
  }

  /// What comes now is of an action for one of every `steps` steps.
  void begin(int steps) { every_ = steps; }

  StepCost take() { return std::move(out_); }

  Status operator()(const ServerExchange& e) {
    out_.pulled += e.pulled;
    out_.pushed += e.pushed;
    return {};
  }

  /// A move between stages is not counted as a collective, since only two ranks take part.
  Status operator()(const Crossing& c) {
    const bool known =
        std::ranges::any_of(c.messages, [](const Crossing::Message& m) { return m.bytes > 0; });
    if (!known) return {};
    AxesCost& axes = entry(out_, {c.axis});
    const std::vector<Rank> first = plan_.mesh.group(c.messages.front().from, c.axis);
    for (const Crossing::Message& m : c.messages) {
      const bool in_host = groups_.same_host(m.from, m.to);
      const Traffic sent{.between_hosts = in_host ? 0 : m.bytes, .in_host = in_host ? m.bytes : 0};
      add(m.from, sent);
      axes.sent += sent;
      if (std::ranges::count(first, m.from) > 0) axes.payload += m.bytes;
    }
    if (c.axis != plan::kStageAxis) ++axes.collectives;
    return {};
  }

  Status operator()(const Collective& c) {
    AxesCost& axes = entry(out_, c.axes);
    const StepGroups::Group* like = nullptr;  // most groups lie on hosts as the one before them
    std::vector<Traffic> sent;
    for (const StepGroups::Group& group : groups_.over(c.axes, c.stages, c.slice)) {
      if (c.only_between_hosts && group.ranks_per_host.size() == 1) continue;
      if (like == nullptr || like->ranks_per_host != group.ranks_per_host) {
        STORMO_ASSIGN_OR_RETURN(sent, traffic_of_(group.ranks_per_host, c));
        like = &group;
      }
      for (std::size_t r = 0; r < sent.size(); ++r) {
        add(group.ranks[r], sent[r]);
        axes.sent += sent[r];
      }
    }
    if (like == nullptr) return {};
    ++axes.collectives;
    axes.payload += c.bytes();
    return {};
  }

 private:
  void add(Rank rank, const Traffic& sent) {
    const auto r = static_cast<std::size_t>(rank);
    out_.ranks[r] += sent;
    out_.mean[r].between_hosts += static_cast<double>(sent.between_hosts) / every_;
    out_.mean[r].in_host += static_cast<double>(sent.in_host) / every_;
  }

  const plan::StepPlan& plan_;
  StepGroups groups_;
  const TrafficOf& traffic_of_;
  int every_ = 1;
  StepCost out_;
};

}  // namespace

Traffic StepCost::total() const {
  Traffic sum;
  for (const Traffic& t : ranks) sum += t;
  return sum;
}

Result<StepCost> cost(const plan::StepPlan& plan, const std::vector<int>& ranks_per_host,
                      const StepSizes& sizes, const TrafficOf& traffic_of) {
  Adder adder(plan, ranks_per_host, traffic_of);
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    adder.begin(plan.actions[i].every);
    for (const Transfer& t : transfers_of(plan, i, sizes)) {
      STORMO_RETURN_IF_ERROR(std::visit(adder, t));
    }
  }
  return adder.take();
}

Result<std::vector<Traffic>> traffic(const plan::AssignedPlan& assigned,
                                     const std::vector<int>& ranks_per_host, const StepSizes& sizes,
                                     const TrafficOf& traffic_of) {
  const plan::StepPlan& plan = assigned.plan;
  const StepGroups groups(plan.mesh, ranks_per_host);
  std::vector<Traffic> out(at(plan.mesh.size()));
  for (const plan::AssignedAction& assigned_action : assigned.actions) {
    const plan::Action& a = plan.actions[assigned_action.action];
    const std::vector<Rank>& ranks = assigned_action.ranks;
    if (row_of(a.kind).moves()) {
      const std::int64_t bytes = moved_bytes(plan, a, sizes);
      const bool in_host = groups.same_host(ranks.front(), ranks.back());
      out[at(ranks.front())] +=
          {.between_hosts = in_host ? 0 : bytes, .in_host = in_host ? bytes : 0};
    }
    if (plan::is_of_replica(a)) continue;
    const StepGroups::Group group = groups.of(ranks);
    for (const Transfer& t : transfers_of(plan, assigned_action.action, sizes)) {
      const auto* c = std::get_if<Collective>(&t);
      if (c == nullptr || !takes_part(plan.mesh, group, *c)) continue;
      STORMO_ASSIGN_OR_RETURN(const std::vector<Traffic> sent,
                              traffic_of(group.ranks_per_host, *c));
      for (std::size_t i = 0; i < sent.size(); ++i) out[at(group.ranks[i])] += sent[i];
    }
  }
  return out;
}

}  // namespace stormo::analysis
