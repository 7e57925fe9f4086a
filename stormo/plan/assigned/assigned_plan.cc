#include <stormo/plan/assigned/assigned_plan.h>

#include <algorithm>
#include <string>
#include <utility>

#include <stormo/base/index.h>
#include <stormo/plan/project.h>

namespace stormo::plan {
namespace {

/// Axes whose ranks compute a sample together, or are one worker of servers.
bool computes_together(const std::string& axis) {
  return axis == kTensorAxis || axis == kContextAxis || axis == kRowsAxis || axis == kColumnsAxis ||
         axis == kWorkerAxis;
}

Status refuse(const std::string& why) {
  return invalid_argument("peers of a lost rank cannot do its work: " + why);
}

/// Which ranks do an action together.
enum class Together { kStage, kStages, kAll };

/// Of one rank of each stage, of all ranks of a stage, or of all.
Together together(const StepPlan& plan, const Action& a) {
  const ActionRow& row = row_of(a.kind);
  if (row.places(Value::kGradients, Placement::kStaged)) return Together::kStages;
  if (row.numbers.count > 0 && row.numbers.over == Over::kAllAxes) return Together::kAll;
  const bool stages = std::ranges::count(a.axes, kStageAxis) > 0;
  if (!stages) return Together::kStage;
  return a.axes.size() == plan.mesh.axes.size() ? Together::kAll : Together::kStages;
}

std::vector<int> stages_of(const StepPlan& plan, const Stages& stages, const Action& a) {
  std::vector<int> out;
  for (int s = 0; s < num_stages(plan.mesh); ++s) {
    if (stages.concern(a, s)) out.push_back(s);
  }
  return out;
}

/// Of an action about a replica's batch, where each rank does the work of its own replica.
void append_own(const StepPlan& plan, const Stages& stages, std::size_t action, int replica,
                std::vector<AssignedAction>& out) {
  const Action& a = plan.actions[action];
  if (row_of(a.kind).moves()) {
    const auto [from, to] = ends_of(a);
    out.push_back({action,
                   replica,
                   {rank_of(plan, replica, stages.of_segment(from)),
                    rank_of(plan, replica, stages.of_segment(to))}});
    return;
  }
  for (const int s : stages_of(plan, stages, a)) {
    out.push_back({action, replica, {rank_of(plan, replica, s)}});
  }
}

}  // namespace

Status check_peers(const StepPlan& plan) {
  const int stage_axis = plan.mesh.find(kStageAxis);
  if (stage_axis < 0) {
    return refuse("the plan has no pipeline; replicas of one rank are ranks of elastic training");
  }
  for (std::size_t i = 0; i < plan.mesh.axes.size(); ++i) {
    const std::string& axis = plan.mesh.axes[i].name;
    if (static_cast<int>(i) == stage_axis) continue;
    if (computes_together(axis)) {
      return refuse("the ranks of axis '" + axis +
                    "' compute each sample together; use pipelines of single ranks");
    }
    for (const Placement p : {plan.parameters[i], plan.frozen[i], plan.optimizer_state[i]}) {
      if (p == Placement::kReplicate) continue;
      return refuse("state of the model is " + std::string(to_string(p)) + " over '" + axis +
                    "', so that peers do not have what is lost with a rank; use "
                    "strategy.kind=ddp with strategy.parameters=replicated");
    }
  }
  if (plan.mesh.axes.size() != 2) {
    return refuse(plan.mesh.axes.size() < 2
                      ? "there is one pipeline; start more ranks"
                      : "there are several axes of replicas; use strategy.kind=ddp");
  }
  if (longest_delay(plan) > 0) {
    return refuse("steps overlap; use a schedule that ends each step, such as 1f1b");
  }
  if (plan.logical_shards > 0 || plan.chosen || keeps_residuals(plan)) {
    return refuse(plan.logical_shards > 0 ? "logical shards add gradients up in one order"
                  : plan.chosen           ? "a step chooses what it trains"
                                          : "a codec keeps what it lost on each rank; leave out "
                                            "strategy.compression");
  }
  return {};
}

int num_replicas(const StepPlan& plan) { return copy_of_model(plan.mesh, 0).parts; }

int replica_of(const StepPlan& plan, Rank rank) { return copy_of_model(plan.mesh, rank).index; }

Rank rank_of(const StepPlan& plan, int replica, int stage) {
  const bool last = plan.mesh.axes.back().name == kStageAxis;
  return last ? replica * num_stages(plan.mesh) + stage : stage * num_replicas(plan) + replica;
}

Result<std::vector<std::vector<Rank>>> ranks_left(const StepPlan& plan,
                                                  const std::vector<Rank>& lost) {
  const int ranks = plan.mesh.size();
  for (const Rank r : lost) {
    if (r >= 0 && r < ranks && std::ranges::count(lost, r) == 1) continue;
    return invalid_argument("lost rank " + std::to_string(r) +
                            (r >= 0 && r < ranks
                                 ? " is named twice"
                                 : ": the plan has ranks 0 to " + std::to_string(ranks - 1)));
  }
  std::vector<std::vector<Rank>> out(at(num_stages(plan.mesh)));
  for (Rank r = 0; r < ranks; ++r) {
    if (std::ranges::count(lost, r) == 0) out[at(stage_of(plan.mesh, r))].push_back(r);
  }
  for (std::size_t s = 0; s < out.size(); ++s) {
    if (!out[s].empty()) continue;
    return invalid_argument("stage " + std::to_string(s) + " has lost all of its " +
                            std::to_string(num_replicas(plan)) +
                            " ranks: nobody has its parameters; go on from a checkpoint");
  }
  return out;
}

// One rank of each stage; those that are over join them in turn.
std::vector<std::vector<Rank>> groups_over_stages(const std::vector<int>& stages,
                                                  const std::vector<std::vector<Rank>>& left) {
  std::size_t groups = left[at(stages.front())].size();
  for (const int s : stages) groups = std::min(groups, left[at(s)].size());
  std::vector<std::vector<Rank>> out(groups);
  for (const int s : stages) {
    const std::vector<Rank>& ranks = left[at(s)];
    for (std::size_t i = 0; i < ranks.size(); ++i) out[i % groups].push_back(ranks[i]);
  }
  for (std::vector<Rank>& group : out) std::ranges::sort(group);
  return out;
}

std::vector<std::vector<Rank>> groups_of(const StepPlan& plan, const Action& a,
                                         const std::vector<std::vector<Rank>>& left) {
  const std::vector<int> stages = stages_of(plan, Stages(plan.model), a);
  const Together how = together(plan, a);
  if (how == Together::kStages) return groups_over_stages(stages, left);
  std::vector<std::vector<Rank>> out;
  for (const int s : stages) {
    if (how == Together::kStage || out.empty()) out.emplace_back();
    out.back().insert(out.back().end(), left[at(s)].begin(), left[at(s)].end());
  }
  for (std::vector<Rank>& group : out) std::ranges::sort(group);
  return out;
}

bool is_of_replica(const Action& a) {
  return row_of(a.kind).micro_batch || makes(a, Value::kBatch);
}

Result<AssignedPlan> assign(const StepPlan& plan) {
  STORMO_RETURN_IF_ERROR(check_peers(plan));
  AssignedPlan out{.plan = plan};
  STORMO_ASSIGN_OR_RETURN(const auto left, ranks_left(plan, {}));
  const Stages stages(plan.model);
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    if (is_of_replica(plan.actions[i])) {
      for (int d = 0; d < num_replicas(plan); ++d) append_own(plan, stages, i, d, out.actions);
      continue;
    }
    for (std::vector<Rank>& group : groups_of(plan, plan.actions[i], left)) {
      out.actions.push_back({i, 0, std::move(group)});
    }
  }
  return out;
}

std::vector<AssignedAction> project(const AssignedPlan& plan, Rank rank) {
  std::vector<AssignedAction> out;
  for (const AssignedAction& a : plan.actions) {
    if (std::ranges::count(a.ranks, rank) > 0) out.push_back(a);
  }
  return out;
}

}  // namespace stormo::plan
