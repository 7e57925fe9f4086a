#pragma once

#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/model/chain.h>
#include <stormo/plan/step_plan.h>
#include <stormo/server/message/run_terms.h>
#include <stormo/train/options.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/reduction/reduction.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// Portions of a batch, with the policy portions; else 0.
int portions_of(const TrainerOptions& options);
/// The workers of a job of `ranks` that compute different samples: stages of one pipeline compute
/// the same ones, and so do ranks that have columns of them.
int replicas_of(const TrainerOptions& options, int ranks);
/// Into how many parts the samples of a step are divided: portions, or one for each replica.
int parts_of(const TrainerOptions& options, int ranks);
/// What is wrong with the policy portions or with L-BFGS in a run of `ranks` ranks.
Status check_portions(const TrainerOptions& options, int ranks);

/// What does not go with logical shards in a run of `ranks` ranks; all of it.
Status check_logical_shards(const TrainerOptions& options, int ranks);

/// Whether servers average what workers train by themselves (policy average).
bool servers_average(const TrainerOptions& options);
/// What does not go with that; all of it.
Status check_server_averages(const TrainerOptions& options);

/// The workers of a job of `ranks`, as its servers count them: each may have several ranks.
int workers_of(const TrainerOptions& options, int ranks);
/// The ranks of a job of `ranks` that are no servers: those of all workers.
int ranks_of_workers(const TrainerOptions& options, int ranks);

/// The same by host; the last ranks are the servers. Hosts without workers are left out.
std::vector<int> workers_per_host(const TrainerOptions& options, std::vector<int> ranks_per_host);

/// kInvalidArgument for Muon where ranks do not have all matrices, each a copy.
Status check_matrices(const TrainerOptions& options);

/// kInvalidArgument for a codec that encodes with an order of additions of its own.
Status check_codec(const GradientOptions& options);
/// What is wrong with averages in other steps than those of all parameters: each slot of the
/// optimizer has a period, and none of them goes with one that adapts.
Status check_other_periods(const TrainerOptions& options);

/// The strategy that a run has by its options: a reducer, a bucket size or Muon means replicas
/// where gradients are averaged, and where servers average the period says how often workers
/// exchange. kInvalidArgument for one that has none.
Result<Strategy> strategy_of(const TrainerOptions& options);

/// What a step has besides its strategy. `scale_loss`: it computes in float16.
parallel::StepOptions step_options_of(const TrainerOptions& options, bool scale_loss, int hosts);

/// kInvalidArgument for servers that cannot have these parameters and workers. OK for strategies
/// without servers.
Status check_servers(const TrainerOptions& options, const std::vector<NamedParameter>& parameters,
                     const std::vector<int>& ranks_per_host);

/// The same for each part of workers that `plan` cuts, whose parameters are on servers of their
/// own.
Status check_served_parts(const TrainerOptions& options, const plan::StepPlan& plan, int workers);

/// Whether replicas of the plan can also average while backward goes on.
bool may_overlap(const plan::StepPlan& plan);
/// The plan in the form that `overlap` names; kMeasured is no form.
Result<plan::StepPlan> overlapped(const plan::StepPlan& plan, const Overlap& overlap);

/// How replicas average gradients.
Overlap overlap_of(const GradientOptions& options);

/// Whether a rank has parts of the parameters between steps, and no memory for others: slices,
/// shards, or those of a stage.
bool has_parts(const plan::StepPlan& plan);
/// The module, if it is a chain that is cut into segments as `model` is; else null.
std::shared_ptr<model::Chain> chain_of(const std::shared_ptr<torch::nn::Module>& module,
                                       const plan::ModelShape& model);
/// The same of a plan whose ranks have parts of all the module's parameters; else null.
std::shared_ptr<model::Chain> chain_in_parts(const std::shared_ptr<torch::nn::Module>& module,
                                             const plan::StepPlan& plan);

/// What holds the module's parameters as the plan wants it. Their values have to be equal on all
/// ranks (broadcast_values()). A collective. `groups` is borrowed. `facts`: what workers of server
/// processes must have in common, by name. `bring`: the module has no values yet; where ranks have
/// parts, it is called for each segment, in order. Throws Error.
std::unique_ptr<ParameterStore> make_store(const plan::StepPlan& plan, const AxisGroups& groups,
                                           const std::shared_ptr<torch::nn::Module>& module,
                                           const TrainerOptions& options, server::Facts facts = {},
                                           const MaterializeSegment& bring = {});

/// The store for a plan that commits. `optimizer`: with its state, of a store before for the same
/// part of the model; of a process that joins with no state yet. Not a collective.
std::unique_ptr<ParameterStore> make_committed_store(
    const plan::StepPlan& plan, const AxisGroups& groups,
    const std::shared_ptr<torch::nn::Module>& module, const TrainerOptions& options,
    std::unique_ptr<Optimizer> optimizer);

}  // namespace stormo::train
