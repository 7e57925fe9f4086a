#include <stormo/analysis/verify/assigned_verify.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/analysis/verify/step_micro_batches.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/base/index.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::AssignedAction;
using plan::bad;
using plan::Value;

/// Walks the assigned actions once, and knows where each tensor of a micro-batch is, and what each
/// rank has done.
class AssignedWalk {
 public:
  explicit AssignedWalk(const plan::AssignedPlan& assigned,
                        const std::vector<std::vector<Rank>>& left)
      : plan_(assigned.plan),
        left_(left),
        stages_(plan_.model),
        replicas_(num_replicas(plan_)),
        micro_batches_(at(replicas_), MicroBatches(plan_)),
        computed_(at(num_stages(plan_.mesh))),
        done_by_(at(plan_.mesh.size())) {
    for (std::size_t i = 0; i < plan_.actions.size(); ++i) {
      if (is_of_replica(plan_.actions[i])) continue;
      for (int s = 0; s < num_stages(plan_.mesh); ++s) {
        if (stages_.concern(plan_.actions[i], s)) ++together_[s];
      }
    }
  }

  Status next(const AssignedAction& assigned) {
    if (assigned.action >= plan_.actions.size()) return bad("there is no such action in the plan");
    const Action& a = plan_.actions[assigned.action];
    STORMO_RETURN_IF_ERROR(ranks_are_left(assigned));
    if (assigned.replica < 0 || assigned.replica >= replicas_) {
      return bad("there is no replica ", assigned.replica);
    }
    if (!is_of_replica(a)) return do_together(assigned);
    if (assigned.ranks.size() != (row_of(a.kind).moves() ? 2U : 1U)) {
      return bad("is not for ", assigned.ranks.size(), " ranks");
    }
    if (makes(a, Value::kBatch)) {
      const bool first = loaded_.insert({assigned.ranks.front(), assigned.replica}).second;
      return first ? Status() : bad("loads the batch a second time");
    }
    STORMO_RETURN_IF_ERROR(micro_batches_[at(assigned.replica)].next(a));
    STORMO_RETURN_IF_ERROR(row_of(a.kind).moves() ? move(assigned, a) : compute(assigned, a));
    for (int s = 0; s < num_stages(plan_.mesh); ++s) {
      if (stages_.concern(a, s)) ++computed_[at(s)][assigned.action];
    }
    return {};
  }

  Status finish() const {
    for (int d = 0; d < replicas_; ++d) {
      STORMO_RETURN_IF_ERROR(
          micro_batches_[at(d)].complete().within("replica " + std::to_string(d)));
    }
    for (std::size_t i = 0; i < plan_.actions.size(); ++i) {
      STORMO_RETURN_IF_ERROR(all_computed(i));
    }
    for (std::size_t s = 0; s < left_.size(); ++s) {
      for (const Rank r : left_[s]) {
        if (done_by_[at(r)].size() == together_.at(static_cast<int>(s))) continue;
        return bad("rank ", r, " does not do all that its stage does together");
      }
    }
    return {};
  }

 private:
  using Place = std::tuple<int, int, int>;  // replica, micro-batch, segment

  Status ranks_are_left(const AssignedAction& assigned) const {
    const Action& a = plan_.actions[assigned.action];
    if (assigned.ranks.empty()) return bad("is for no rank");
    for (const Rank r : assigned.ranks) {
      if (r < 0 || r >= plan_.mesh.size()) return bad("is for rank ", r, ", which does not exist");
      const int stage = stage_of(plan_.mesh, r);
      if (std::ranges::count(left_[at(stage)], r) == 0) return bad("is for rank ", r, ", lost");
      if (!stages_.concern(a, stage)) return bad("is not for stage ", stage, " of rank ", r);
      if (std::ranges::count(assigned.ranks, r) > 1) return bad("is for rank ", r, " twice");
    }
    return {};
  }

  Status move(const AssignedAction& assigned, const Action& a) {
    const auto [from, to] = ends_of(a);
    const Rank sender = assigned.ranks.front(), receiver = assigned.ranks.back();
    if (stage_of(plan_.mesh, sender) != stages_.of_segment(from) ||
        stage_of(plan_.mesh, receiver) != stages_.of_segment(to)) {
      return bad("goes from rank ", sender, " to rank ", receiver, ", against its direction");
    }
    auto& places = makes(a, Value::kOutput) ? outputs_ : gradients_;
    const auto made = places.find({assigned.replica, a.micro_batch, from});
    if (made == places.end() || made->second != sender) {
      return bad("sends from rank ", sender, " what is not there");
    }
    arrived_[{a.kind, {assigned.replica, a.micro_batch, to}}] = receiver;
    return {};
  }

  Status compute(const AssignedAction& assigned, const Action& a) {
    const plan::ActionRow& row = row_of(a.kind);
    const Rank rank = assigned.ranks.front();
    if (!loaded_.contains({rank, assigned.replica})) {
      return bad("is of a batch that rank ", rank, " has not loaded");
    }
    const int last_of_model = static_cast<int>(plan_.model.segments.size()) - 1;
    if (row.makes.has(Value::kLoss)) return is_at(outputs_, assigned, last_of_model);
    const auto [first, last] = a.range;
    if (row.runs_forward() && !row.recomputes()) {
      STORMO_RETURN_IF_ERROR(
          input_is_there(plan::ActionKind::kMoveActivation, assigned, first, first - 1, outputs_));
      for (int s = first; s <= last; ++s) outputs_[{assigned.replica, a.micro_batch, s}] = rank;
      return {};
    }
    for (int s = first; s <= last; ++s) STORMO_RETURN_IF_ERROR(is_at(outputs_, assigned, s));
    if (!row.passes_gradient()) return {};
    if (last < last_of_model) {
      STORMO_RETURN_IF_ERROR(
          input_is_there(plan::ActionKind::kMoveGradient, assigned, last, last + 1, gradients_));
    }
    for (int s = first; s <= last; ++s) gradients_[{assigned.replica, a.micro_batch, s}] = rank;
    return {};
  }

  /// What the segment beside `segment` has made, on this rank: it was made there, or came there.
  Status input_is_there(plan::ActionKind move, const AssignedAction& assigned, int segment,
                        int beside, const std::map<Place, Rank>& made) const {
    const Action& a = plan_.actions[assigned.action];
    if (beside < 0) return {};
    if (stages_.of_segment(beside) == stages_.of_segment(segment)) {
      return is_at(made, assigned, beside);
    }
    const auto found = arrived_.find({move, {assigned.replica, a.micro_batch, segment}});
    const bool here = found != arrived_.end() && found->second == assigned.ranks.front();
    return here ? Status()
                : bad("needs what segment ", beside, " made, which is not moved to rank ",
                      assigned.ranks.front());
  }

  Status is_at(const std::map<Place, Rank>& made, const AssignedAction& assigned,
               int segment) const {
    const int micro_batch = plan_.actions[assigned.action].micro_batch;
    const auto found = made.find({assigned.replica, micro_batch, segment});
    if (found != made.end() && found->second == assigned.ranks.front()) return {};
    return bad("is for rank ", assigned.ranks.front(), ", but segment ", segment,
               " was computed elsewhere");
  }

  Status do_together(const AssignedAction& assigned) {
    const Action& a = plan_.actions[assigned.action];
    for (const Rank r : assigned.ranks) {
      std::vector<std::size_t>& done = done_by_[at(r)];
      if (!done.empty() && done.back() >= assigned.action) {
        return bad("comes on rank ", r, " after action ", done.back());
      }
      done.push_back(assigned.action);
    }
    for (std::size_t i = 0; i < assigned.action; ++i) {
      if (makes(plan_.actions[i], Value::kBatch)) continue;
      STORMO_RETURN_IF_ERROR(all_computed(i, assigned.ranks));
    }
    return all_take_part(assigned, a);
  }

  /// Of an action of a micro-batch, which every replica has: on the stages of these ranks, or on
  /// all.
  Status all_computed(std::size_t action, const std::vector<Rank>& ranks = {}) const {
    const Action& a = plan_.actions[action];
    if (!row_of(a.kind).micro_batch) return {};
    for (int s = 0; s < num_stages(plan_.mesh); ++s) {
      const bool asked = ranks.empty() || std::ranges::any_of(ranks, [&](Rank r) {
                           return stage_of(plan_.mesh, r) == s;
                         });
      if (!asked || !stages_.concern(a, s)) continue;
      const auto found = computed_[at(s)].find(action);
      const int times = found == computed_[at(s)].end() ? 0 : found->second;
      if (times == replicas_) continue;
      return bad("action ", action, " is done for ", times, " of ", replicas_, " replicas",
                 ranks.empty() ? "" : " before it");
    }
    return {};
  }

  /// Of what ranks exchange: over replicas all of a stage, over stages one of each at least.
  Status all_take_part(const AssignedAction& assigned, const Action& a) const {
    const plan::ActionRow& row = row_of(a.kind);
    const bool tied = row.places(Value::kGradients, plan::Placement::kStaged);
    const bool of_all = row.numbers.count > 0 && row.numbers.over == plan::Over::kAllAxes;
    const bool counts = row.numbers.count > 0 && row.numbers.over == plan::Over::kDataAxes;
    const auto named = [&](const plan::Axis& axis) {
      return std::ranges::count(a.axes, axis.name) > 0;
    };
    bool over_stages = tied || of_all, over_replicas = of_all || counts;
    for (const plan::Axis& axis : plan_.mesh.axes) {
      (axis.name == plan::kStageAxis ? over_stages : over_replicas) |= named(axis);
    }
    std::vector<std::size_t> here(left_.size());
    for (const Rank r : assigned.ranks) ++here[at(stage_of(plan_.mesh, r))];
    for (std::size_t s = 0; s < left_.size(); ++s) {
      const bool concerned = stages_.concern(a, static_cast<int>(s));
      if (concerned && over_stages && here[s] == 0) return bad("lacks a rank of stage ", s);
      if (over_replicas && here[s] > 0 && here[s] < left_[s].size()) {
        return bad("lacks a rank of stage ", s, ", of which ", left_[s].size(), " are left");
      }
    }
    return {};
  }

  const plan::StepPlan& plan_;
  const std::vector<std::vector<Rank>>& left_;  // by stage
  plan::Stages stages_;
  int replicas_;
  std::vector<MicroBatches> micro_batches_;           // by replica
  std::vector<std::map<std::size_t, int>> computed_;  // by stage: action, for how many replicas
  std::vector<std::vector<std::size_t>> done_by_;     // by rank: what it did together
  std::map<int, std::size_t> together_;               // by stage: how many there are
  std::set<std::pair<Rank, int>> loaded_;             // rank, replica
  std::map<Place, Rank> outputs_, gradients_;         // who made them
  std::map<std::pair<plan::ActionKind, Place>, Rank> arrived_;
};

}  // namespace

Status verify(const plan::AssignedPlan& p) {
  STORMO_RETURN_IF_ERROR(verify(p.plan));
  STORMO_RETURN_IF_ERROR(check_peers(p.plan));
  STORMO_ASSIGN_OR_RETURN(const auto left, ranks_left(p.plan, p.lost));
  AssignedWalk walk(p, left);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const AssignedAction& a = p.actions[i];
    const Status ok = walk.next(a);
    if (ok.ok()) continue;
    const std::string what =
        a.action < p.plan.actions.size() ? plan::describe(p.plan, a.action) : std::string();
    return ok.within("assigned action " + std::to_string(i) + " (" + what + ", replica " +
                     std::to_string(a.replica) + ")");
  }
  return walk.finish();
}

}  // namespace stormo::analysis
