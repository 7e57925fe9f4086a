#pragma once

#include <cstddef>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::plan {

/// An action of a step plan, and who does it.
struct AssignedAction {
  std::size_t action = 0;  ///< its number in the plan
  /// Whose batch, or micro-batch, it is about: a replica of the model, by its number. 0 for what is
  /// of all replicas.
  int replica = 0;
  /// Of a move the sender and the receiver. Of what a replica's batch needs else, one rank. Of all
  /// other actions those that do it together, ascending.
  std::vector<Rank> ranks = {};
  bool operator==(const AssignedAction&) const = default;
};

/// A step of replicas that are pipelines, some of whose ranks are lost. In a StepPlan every replica
/// does the same; here each micro-batch of each replica has ranks of its own, so that peers can do
/// the work of a lost rank: the ranks of its stage in other replicas, which have its parameters.
/// Ranks keep their numbers. The order is one in which ranks that execute their parts never block
/// each other.
struct AssignedPlan {
  StepPlan plan;                ///< of all ranks
  std::vector<Rank> lost = {};  ///< ascending; they do nothing
  std::vector<AssignedAction> actions = {};
  bool operator==(const AssignedPlan&) const = default;
};

/// Whether ranks of a stage can do each other's work: the plan is of replicas that are pipelines,
/// each rank has all of its stage's parameters and optimizer state, and steps do not overlap.
/// kInvalidArgument says what is in the way.
Status check_peers(const StepPlan& plan);

/// Of a plan that check_peers() accepts.
int num_replicas(const StepPlan& plan);
int replica_of(const StepPlan& plan, Rank rank);
/// The rank that has a stage of a replica, lost or not.
Rank rank_of(const StepPlan& plan, int replica, int stage);

/// By stage: the ranks that are not lost, ascending. kInvalidArgument for ranks that are none, or
/// named twice, and where nobody is left who has the parameters of a stage.
Result<std::vector<std::vector<Rank>>> ranks_left(const StepPlan& plan,
                                                  const std::vector<Rank>& lost);

/// The ranks that do an action together that is not about one replica's batch. Over replicas these
/// are all that are left of its stage. Over stages there are as many groups as the smallest of its
/// stages has ranks, each with at least one of every stage; the first one of each stage gives what
/// the stage adds to a sum.
std::vector<std::vector<Rank>> groups_of(const StepPlan& plan, const Action& a,
                                         const std::vector<std::vector<Rank>>& left);

/// Those over some stages, for ranks that only add up.
std::vector<std::vector<Rank>> groups_over_stages(const std::vector<int>& stages,
                                                  const std::vector<std::vector<Rank>>& left);

/// Whether an action is about the batch of one replica: a load, or one of a micro-batch.
bool is_of_replica(const Action& a);

/// The plan with nobody lost, in its own order: each rank does the work of its replica.
Result<AssignedPlan> assign(const StepPlan& plan);

/// What one rank does, in order.
std::vector<AssignedAction> project(const AssignedPlan& plan, Rank rank);

}  // namespace stormo::plan
