// A Runner whose rank computes micro-batches of several replicas, because peers are lost.
#include <algorithm>
#include <set>
#include <utility>

#include <stormo/analysis/verify/assigned_verify.h>
#include <stormo/base/index.h>
#include <stormo/plan/project.h>
#include <stormo/train/step/runner.h>

namespace stormo::train {

using plan::Action;
using plan::Value;

Status Runner::set_plan(const plan::AssignedPlan& plan, LoadReplica load) {
  if (!batches_.empty()) {
    return Status(Code::kBadPlan, "batches of the plan before are under way");
  }
  STORMO_RETURN_IF_ERROR(analysis::verify(plan));
  if (!parts_.global_samples) {
    return Status(Code::kBadPlan,
                  "ranks do the work of others, and the run does not say how many samples the "
                  "global batch has; set RunnerParts::global_samples");
  }
  Assigned assigned{.own = replica_of(plan.plan, rank_),
                    .micro_batches = plan.plan.micro_batches,
                    .load = std::move(load)};
  assigned.loads.push_back(assigned.own);
  plan::StepPlan own = project(plan.plan, rank_);
  // each rank begins with one load: so all count batches alike
  std::erase_if(own.actions, [](const Action& a) { return !makes(a, Value::kBatch); });
  assigned.ranks.emplace_back();
  for (const plan::AssignedAction& a : project(plan, rank_)) {
    Action action = plan.plan.actions[a.action];
    if (makes(action, Value::kBatch)) {
      if (a.replica != assigned.own) assigned.loads.push_back(a.replica);
      continue;
    }
    if (row_of(action.kind).micro_batch) {
      action.micro_batch += a.replica * assigned.micro_batches;
      assigned.computes = true;
    }
    own.actions.push_back(std::move(action));
    assigned.ranks.push_back(a.ranks);
  }
  std::set<std::pair<int, Rank>> computing;
  for (const plan::AssignedAction& a : plan.actions) {
    const plan::ActionRow& row = row_of(plan.plan.actions[a.action].kind);
    if (!row.micro_batch || row.moves()) continue;
    computing.emplace(stage_of(plan.plan.mesh, a.ranks.front()), a.ranks.front());
  }
  assigned.computing.resize(stormo::at(num_stages(plan.plan.mesh)));
  for (const auto& [stage, rank] : computing) ++assigned.computing[stormo::at(stage)];
  own.micro_batches = num_replicas(plan.plan) * assigned.micro_batches;
  STORMO_RETURN_IF_ERROR(adopt(plan.plan, std::move(own), {}));
  assigned_ = std::move(assigned);
  return {};
}

/// Micro-batches that this rank does not compute are cut all the same: they are views.
Status Runner::load_assigned() {
  batch_->number = loads_++;
  batch_->learning_rate = learning_rate_;
  batch_->micro_batches.resize(stormo::at(plan_.micro_batches));
  for (const int replica : assigned_->loads) {
    STORMO_ASSIGN_OR_RETURN(const data::Batch batch,
                            replica == assigned_->own ? parts_.load() : assigned_->load(replica));
    if (batch.size() == 0) continue;
    const auto inputs = batch.input.tensor_split(assigned_->micro_batches);
    std::vector<torch::Tensor> targets(inputs.size());
    if (batch.target.defined()) targets = batch.target.tensor_split(assigned_->micro_batches);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::size_t number = stormo::at(replica * assigned_->micro_batches) + i;
      batch_->micro_batches[number].batch = {inputs[i], targets[i]};
    }
  }
  batch_->counted = parts_.global_samples();
  for (const Action& a : plan_.actions) {
    if (makes(a, Value::kLoss)) outcome_.samples += at(a).batch.size();
  }
  return {};
}

double Runner::weight() const {
  if (assigned_) return assigned_->computes ? 1 : 0;
  return sums_ ? shards_.size() : static_cast<double>(batch_->samples);
}

/// Of its loss in that of which this rank's gradients are.
double Runner::share_of(const MicroBatch& m) const {
  const double share = static_cast<double>(m.batch.size()) / static_cast<double>(batch_->counted);
  return assigned_ ? share * assigned_->computing[stormo::at(stage_of(plan_.mesh, rank_))] : share;
}

/// The gradient that came across the boundary behind a segment.
torch::Tensor Runner::scaled(torch::Tensor gradient, int boundary) const {
  if (!assigned_ || !gradient.defined()) return gradient;
  const auto computing = [&](int segment) {
    return assigned_->computing[stormo::at(plan_.model.segments[stormo::at(segment)].stage)];
  };
  const double factor = computing(boundary) / computing(boundary + 1);
  return factor == 1 ? gradient : gradient * factor;
}

/// Sender and receiver, in the mesh.
std::pair<Rank, Rank> Runner::ranks_of_move(const Action& action) const {
  if (assigned_) return {assigned_->ranks[current_].front(), assigned_->ranks[current_].back()};
  const std::vector<Rank> stages = plan_.mesh.group(rank_, plan::kStageAxis);
  const auto rank_of = [&](int segment) {
    return stages[stormo::at(plan_.model.segments[stormo::at(segment)].stage)];
  };
  const auto [from, to] = ends_of(action);
  return {rank_of(from), rank_of(to)};
}

}  // namespace stormo::train
