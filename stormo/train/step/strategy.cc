#include <stormo/train/step/strategy.h>

#include <algorithm>
#include <climits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <stormo/base/requirements.h>
#include <stormo/optim/options.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/plan/project.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/tensor/dtype.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/model_parallel/model_parallel_store.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/population/population_store.h>
#include <stormo/train/server_store/elastic_store.h>
#include <stormo/train/server_store/served_store.h>
#include <stormo/train/server_store/server_averaged_store.h>
#include <stormo/train/step/elastic_check.h>
#include <stormo/train/step/few_numbers.h>
#include <stormo/train/step/layout.h>
#include <stormo/train/step/reducers.h>
#include <stormo/train/step/topology_file.h>
#include <stormo/train/store/averaged_store.h>
#include <stormo/train/store/host_copy_store.h>
#include <stormo/train/store/host_shared_store.h>
#include <stormo/train/store/replicated_store.h>
#include <stormo/train/store/sharded_store.h>

namespace stormo::train {
namespace {

parallel::ReductionForm form_of(const GradientOptions& options) {
  if (options.deterministic) return parallel::in_one_order(options.codec);
  return {.codec = options.codec, .all_reduce = std::string(row_of(options.reducer).algorithm)};
}

/// Whether every micro-batch is computed in one piece, one after the other: then gradients become
/// ready once, in the last backward.
bool has_simple_passes(const plan::StepPlan& plan) {
  bool in_pass = false;
  for (const plan::Action& a : plan.actions) {
    const plan::ActionRow& row = row_of(a.kind);
    const bool forward = row.runs_forward() && !row.recomputes();
    if (!forward && !(row.passes_gradient() && row.adds_gradients)) continue;
    if (a.range != all_segments(plan.model) || in_pass == forward) return false;
    in_pass = forward;
  }
  return true;
}

/// Of a worker.
int ranks_of_one(const TrainerOptions& options) {
  return static_cast<int>(std::max<std::int64_t>(1, ranks_of_worker(options.strategy)));
}

}  // namespace

Overlap overlap_of(const GradientOptions& options) {
  if (options.bucket_bytes > 0) return Overlap::buckets(options.bucket_bytes);
  return options.overlap ? Overlap::measured() : Overlap::at_the_end();
}

bool may_overlap(const plan::StepPlan& plan) {
  const auto correction = momentum_of(plan);
  const bool clips_terms = correction && correction->clip_norm > 0;  // by the norm of all of them
  int averages = 0;
  bool counts = false;
  for (const plan::Action& a : plan.actions) {
    if (places(a, plan::Value::kGradients, plan::Placement::kReplicate)) ++averages;
    counts = counts || makes(a, plan::Value::kWeights);
  }
  return plan.logical_shards == 0 && model_axes(plan.mesh).empty() &&
         sample_part(plan.mesh, 0).parts == 1 && has_simple_passes(plan) && averages == 1 &&
         !counts && !clips_terms;
}

Result<plan::StepPlan> overlapped(const plan::StepPlan& plan, const Overlap& overlap) {
  if (overlap.kind != Overlap::Kind::kBuckets) return plan;
  return parallel::compose(plan, parallel::bucket(overlap.bucket_bytes));
}

int portions_of(const TrainerOptions& options) {
  const protocol::PolicyOptions& policy = options.servers.policy;
  const bool has = options.strategy.kind == Strategy::Kind::kParameterServer &&
                   policy.kind == protocol::PolicyOptions::Kind::kPortions;
  return has ? policy.portions : 0;
}

int replicas_of(const TrainerOptions& options, int ranks) {
  // a search looks at that by itself
  if (options.strategy.kind == Strategy::Kind::kAuto) return 1;
  if (options.strategy.kind == Strategy::Kind::kVertical) return 1;
  const std::int64_t together = std::max<std::int64_t>(1, ranks_of_replica(options.strategy));
  return static_cast<int>(std::max<std::int64_t>(1, ranks_of_workers(options, ranks) / together));
}

int parts_of(const TrainerOptions& options, int ranks) {
  const int portions = portions_of(options);
  return portions > 0 ? portions : replicas_of(options, ranks);
}

Status check_portions(const TrainerOptions& options, int ranks) {
  Requirements require;
  const bool portions = portions_of(options) > 0;
  if (options.optimizer.kind == OptimizerOptions::Kind::kLbfgs) {
    require(portions || (!has_servers(options.strategy.kind) && ranks == 1),
            "lbfgs needs the gradient of a whole batch in one place: use one rank, or "
            "strategy.kind=parameter_server strategy.policy=portions strategy.server_processes=1");
    require(options.clip_norm == 0,
            "lbfgs searches along its direction; leave out train.clip_norm");
  }
  if (portions) {
    require(options.servers.processes > 0 || options.session,
            "policy portions has a coordinator, which commands server processes; write "
            "strategy.server_processes=1");
    require(!options.servers.backups,
            "policy portions has a coordinator without a copy; leave out strategy.server_backups");
    require(options.strategy.exchange_periods.every_step(),
            "with policy portions each portion is read and pushed for; leave out fetch_every and "
            "push_every");
    require(!options.balance_by_speed,
            "with policy portions fast workers take more of them; leave out data.balance_by_speed");
    require(options.servers.updates == server::ShardUpdates::kVersions,
            "with policy portions a batch is one update; leave out strategy.updates");
  }
  return require.status();
}

bool servers_average(const TrainerOptions& options) {
  return options.strategy.kind == Strategy::Kind::kParameterServer &&
         protocol::averages_values(options.servers.policy.kind);
}

Status check_server_averages(const TrainerOptions& options) {
  if (!servers_average(options)) return {};
  Requirements require;
  require(options.strategy.exchange_periods == parallel::ExchangePeriods{},
          "with policy average workers exchange in every strategy.period steps; leave out "
          "fetch_every and push_every");
  require(options.strategy.worker_ranks <= 1,
          "with policy average a worker is one rank; leave out worker_ranks");
  require(options.servers.updates == server::ShardUpdates::kVersions,
          "with policy average a new version is an average; leave out strategy.updates");
  require(!options.balance_by_speed,
          "with policy average a worker goes on with its own parameters; leave out "
          "data.balance_by_speed");
  require(options.record.empty(),
          "with policy average workers train copies of their own, which is not replayed; leave out "
          "--record");
  return require.status();
}

int workers_of(const TrainerOptions& options, int ranks) {
  if (options.session) return options.session->workers();
  return (ranks - options.servers.processes) / ranks_of_one(options);
}

int ranks_of_workers(const TrainerOptions& options, int ranks) {
  if (options.session) return options.session->workers() * ranks_of_one(options);
  return ranks - options.servers.processes;
}

std::vector<int> workers_per_host(const TrainerOptions& options, std::vector<int> ranks_per_host) {
  int servers = options.session ? 0 : options.servers.processes;
  while (servers > 0 && !ranks_per_host.empty()) {
    const int here = std::min(servers, ranks_per_host.back());
    servers -= here;
    ranks_per_host.back() -= here;
    if (ranks_per_host.back() == 0) ranks_per_host.pop_back();
  }
  return ranks_per_host;
}

Status check_codec(const GradientOptions& options) {
  if (options.reducer == Reducer::kAdasum && options.codec != Codec::kNone) {
    return invalid_argument(
        "gradients are combined by adasum as they are; leave out strategy.compression, or choose "
        "another reducer");
  }
  const bool orders = options.deterministic || options.reducer != Reducer::kAuto;
  if (!row_of(options.codec).encodes() || !orders) return {};
  return invalid_argument(
      "gradients in codec " + std::string(to_string(options.codec)) +
      " have a reduction of their own, whose bits depend on how they are cut into buckets; leave "
      "out deterministic and the reducer, or choose another strategy.compression");
}

Status check_other_periods(const TrainerOptions& options) {
  const std::size_t given = options.strategy.state_periods.size();
  const std::size_t slots = optim::num_slots(options.optimizer);
  Requirements require;
  require(given == 0 || slots > 0, "the optimizer has no state: leave out strategy.state_periods");
  require(given == 0 || slots == 0 || given == slots,
          "strategy.state_periods has " + std::to_string(given) + " number(s), and the optimizer " +
              std::to_string(slots) + " slot(s): give one for each");
  require((given == 0 && options.strategy.local_period == 0) || !options.averaging.adapts(),
          "strategy.local_period and state_periods go with a period that does not change: leave "
          "them out, or max_distance and period_seconds");
  return require.status();
}

Result<Strategy> strategy_of(const TrainerOptions& options) {
  Strategy strategy = options.strategy;
  const GradientOptions& gradients = options.gradients;
  if (gradients.deterministic && gradients.reducer != Reducer::kAuto) {
    return invalid_argument(
        "deterministic gradients have a reduction of their own; leave out the reducer");
  }
  STORMO_RETURN_IF_ERROR(check_codec(gradients));
  STORMO_RETURN_IF_ERROR(check_density_warmup(options).within("strategy.warmup_steps"));
  if (options.averaging.adapts() && parallel::streams(strategy.streaming)) {
    return invalid_argument(
        "fragments have steps of their own in a period of strategy.period steps: leave out "
        "max_distance and period_seconds, or fragments and delay");
  }
  STORMO_RETURN_IF_ERROR(check_other_periods(options));
  if (servers_average(options)) {
    strategy.exchange_periods = {
        .fetch = strategy.period, .push = strategy.period, .averages = true};
  }
  if (options.commits) STORMO_RETURN_IF_ERROR(check_elastic(options));
  STORMO_RETURN_IF_ERROR(check_matrices(options));
  STORMO_ASSIGN_OR_RETURN(strategy.topology, read_topology(strategy.topology));
  const bool all_reduces = parallel::row_of(strategy.kind).all_reduces;
  const bool says_how = gradients.reducer != Reducer::kAuto || gradients.bucket_bytes > 0;
  if (says_how && !all_reduces) {
    return invalid_argument(
        "a reducer or bucket_bytes say how replicas average gradients; this strategy has none: "
        "leave them out, or use 'ddp'");
  }
  const bool whole = options.optimizer.kind == OptimizerOptions::Kind::kMuon && all_reduces;
  if ((says_how || whole) && strategy.parameters == Strategy::Parameters::kAuto) {
    strategy.parameters = Strategy::Parameters::kReplicated;
  }
  return strategy;
}

parallel::StepOptions step_options_of(const TrainerOptions& options, bool scale_loss, int hosts) {
  // in one host workers map the memory of servers
  const bool has_servers = options.session || options.servers.processes > 0;
  const bool sends =
      (options.session ? options.session->hosts() : hosts) > 1 || options.servers.backups;
  return {
      .micro_batches = static_cast<int>(std::min<std::int64_t>(options.micro_batches, INT_MAX)),
      .logical_shards = static_cast<int>(std::min<std::int64_t>(options.logical_shards, INT_MAX)),
      .scale_loss = scale_loss,
      .clip = options.clip_norm > 0,
      .commit = options.commits,
      .trust_ratios = optim::needs_norms(options.optimizer.kind),
      // inside one host there is no wire that works while cores compute
      .prefetch = options.gradients.overlap && hosts > 1 ? 1 : 0,
      .recompute = options.recompute,
      .overlap_exchange = options.gradients.overlap && has_servers && sends,
      .bucket_bytes = options.gradients.bucket_bytes,
      .reduction = form_of(options.gradients)};
}

Status check_logical_shards(const TrainerOptions& options, int ranks) {
  return parallel::check_logical_shards(options.strategy, {.ranks_per_host = {ranks}},
                                        step_options_of(options, /*scale_loss=*/false, 1));
}

namespace {

/// What workers of several ranks cannot do.
Status check_worker_ranks(const TrainerOptions& options, const std::vector<int>& ranks_per_host) {
  const int ranks = options.strategy.worker_ranks;
  if (ranks <= 1) return {};
  if (portions_of(options) > 0) {
    return invalid_argument("with policy portions a worker is one rank; leave out worker_ranks");
  }
  if (options.servers.updates == server::ShardUpdates::kInPlace) {
    return invalid_argument(
        "all ranks of a worker use copies of one version, and updates in place have none; leave "
        "out worker_ranks, or strategy.updates");
  }
  if (!options.record.empty()) {
    return invalid_argument(
        "a replay computes the gradient of a worker in one piece, so the bits would differ; leave "
        "out worker_ranks, or --record");
  }
  if (options.servers.processes == 0) return {};
  for (const int here : workers_per_host(options, ranks_per_host)) {
    if (here % ranks == 0) continue;
    return invalid_argument("the ranks of a worker are on one host, and a host has " +
                            std::to_string(here) + " ranks besides servers, no multiple of " +
                            std::to_string(ranks) + " (strategy.worker_ranks)");
  }
  return {};
}

/// What workers that are cut cannot do; all of it.
Status check_worker_parts(const TrainerOptions& options) {
  const std::int64_t parts = ranks_of_replica(options.strategy);
  if (parts <= 1 || options.strategy.kind != Strategy::Kind::kParameterServer) return {};
  Requirements require;
  require(options.session || options.servers.processes >= parts,
          "each part of a worker, a stage or slice, has server processes of its own; write "
          "strategy.server_processes=" +
              std::to_string(parts) + " or more, or use 'ddp'");
  require(portions_of(options) == 0,
          "with policy portions a worker is one rank; leave out strategy.pipeline and tensor");
  require(!options.servers.backups,
          "the servers of each part would choose a chief of their own; leave out "
          "strategy.server_backups, or strategy.pipeline and tensor");
  return require.status();
}

}  // namespace

Status check_servers(const TrainerOptions& options, const std::vector<NamedParameter>& parameters,
                     const std::vector<int>& ranks_per_host) {
  if (!has_servers(options.strategy.kind)) return {};
  STORMO_RETURN_IF_ERROR(check_server_averages(options));
  STORMO_RETURN_IF_ERROR(check_worker_ranks(options, ranks_per_host));
  STORMO_RETURN_IF_ERROR(check_worker_parts(options));
  const int ranks = std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0);
  const int workers = workers_of(options, ranks);
  if (options.servers.processes == 0 && ranks_per_host.size() > 1) {
    return ServedStore::needs_one_host();
  }
  if (workers < 1) {
    return invalid_argument(std::to_string(options.servers.processes) + " of " +
                            std::to_string(ranks) +
                            " ranks are servers (strategy.server_processes), and none is left to "
                            "be a worker; start more ranks");
  }
  if (options.balance_by_speed && !options.strategy.exchange_periods.every_step()) {
    return invalid_argument(
        "data.balance_by_speed goes with fetch_every = push_every = 1 only: a step that another "
        "worker takes begins with a pull and ends with a push");
  }
  if (!options.record.empty() && !options.strategy.exchange_periods.every_step()) {
    return invalid_argument(
        "a run is recorded with fetch_every = push_every = 1 only: what workers compute on copies "
        "of their own is not replayed");
  }
  const bool elastic = options.strategy.kind == Strategy::Kind::kElasticAveraging;
  if (elastic) STORMO_RETURN_IF_ERROR(moving_rate_of(options.elastic, workers).status());
  const TrainerOptions of_servers = elastic                    ? centre_options(options)
                                    : servers_average(options) ? averaging_options(options)
                                                               : options;
  return ServedParameters::create(parameters, of_servers, workers).status();
}

Status check_served_parts(const TrainerOptions& options, const plan::StepPlan& plan, int workers) {
  if (!is_remote(plan) || model_axes(plan.mesh).empty()) return {};
  const plan::Stages stages(plan.model);
  const int ranks = static_cast<int>(ranks_of_worker(options.strategy));
  for (Rank rank = 0; rank < ranks; ++rank) {
    const int stage = stage_of(plan.mesh, rank);
    const plan::Part slice = slice_of(plan.mesh, rank);
    const plan::ModelShape model = model_of(plan.model, stage, slice);
    std::vector<NamedParameter> part;
    for (int i = 0; const plan::ParameterShape* p : flatten(model)) {
      const bool is_own = stages.of_parameter(i++).front() == stage;
      const bool counts = p->split.units > 0 || slice.index == 0;
      if (!p->trainable || !is_own || !counts || p->elements == 0) continue;
      part.push_back(
          {.name = p->name,
           .tensor = tensor::without_memory({p->elements}, tensor::scalar_type_of(p->dtype)),
           .sparse = p->sparse});
    }
    const std::string who = "rank " + std::to_string(rank) + " of a worker (stage " +
                            std::to_string(stage) + ", slice " + std::to_string(slice.index) + ")";
    if (part.empty()) {
      return invalid_argument(who +
                              " has no trainable parameters, and nothing for its servers; cut the "
                              "model at other places (strategy.cut), or into fewer slices");
    }
    STORMO_RETURN_IF_ERROR(
        ServedParameters::create(std::move(part), options, workers).status().within(who));
  }
  return {};
}

bool has_parts(const plan::StepPlan& plan) {
  const int shard = plan.mesh.find(parallel::kShardAxis);
  const bool drops = shard >= 0 && plan.mesh.axes[static_cast<std::size_t>(shard)].size > 1 &&
                     sharding_stage(plan) == 3;
  return !model_axes(plan.mesh).empty() || drops;
}

std::shared_ptr<model::Chain> chain_of(const std::shared_ptr<torch::nn::Module>& module,
                                       const plan::ModelShape& model) {
  const auto same = [](const plan::SegmentShape& a, const plan::SegmentShape& b) {
    constexpr auto kElements = &plan::ParameterShape::elements;
    return a.borrowed == b.borrowed &&
           std::ranges::equal(a.parameters, b.parameters, {}, kElements, kElements);
  };
  auto chain = std::dynamic_pointer_cast<model::Chain>(module);
  if (chain == nullptr) return nullptr;
  return std::ranges::equal(chain->shape().segments, model.segments, same) ? chain : nullptr;
}

std::shared_ptr<model::Chain> chain_in_parts(const std::shared_ptr<torch::nn::Module>& module,
                                             const plan::StepPlan& plan) {
  const bool has_all = static_cast<int>(module->parameters().size()) == num_parameters(plan.model);
  return has_all && has_parts(plan) ? chain_of(module, plan.model) : nullptr;
}

namespace {

std::unique_ptr<ParameterStore> store_of(const plan::StepPlan& plan, const AxisGroups& groups,
                                         const std::shared_ptr<torch::nn::Module>& module,
                                         const TrainerOptions& options, server::Facts facts,
                                         const MaterializeSegment& bring) {
  const std::vector<NamedParameter> parameters = trainable_parameters(*module);
  const OptimizerOptions rule = optimizer_of(plan, options.optimizer);
  if (!model_axes(plan.mesh).empty()) {
    const auto serve = [&](std::vector<NamedParameter> part) {
      return std::make_unique<ServedStore>(groups, std::move(part), options, std::move(facts));
    };
    return std::make_unique<ModelParallelStore>(groups, plan, module, options.optimizer,
                                                options.strategy.outer, bring, serve);
  }
  switch (layout_of(plan)) {
    case Layout::kSharded:
      return std::make_unique<ShardedStore>(groups, module, plan, options.optimizer, bring);
    case Layout::kServerAveraged:
      return std::make_unique<ServerAveragedStore>(groups, module, options, std::move(facts));
    case Layout::kServed:
      return std::make_unique<ServedStore>(groups, module, options, std::move(facts));
    case Layout::kElastic:
      return std::make_unique<ElasticStore>(groups, module, options, std::move(facts));
    case Layout::kAveraged:
      return std::make_unique<AveragedStore>(
          groups, std::make_unique<FusedOptimizer>(options.optimizer, parameters),
          options.strategy.outer);
    case Layout::kPopulation:
      return std::make_unique<PopulationStore>(
          groups, std::make_unique<FusedOptimizer>(options.optimizer, parameters));
    case Layout::kHostShared:
      if (plan.commits) {
        return std::make_unique<HostCopyStore>(groups,
                                               make_optimizer(options.optimizer, parameters));
      }
      return std::make_unique<HostSharedStore>(groups, rule, parameters);
    case Layout::kReplicated: break;
  }
  return std::make_unique<ReplicatedStore>(groups, make_optimizer(rule, parameters));
}

}  // namespace

std::unique_ptr<ParameterStore> make_store(const plan::StepPlan& plan, const AxisGroups& groups,
                                           const std::shared_ptr<torch::nn::Module>& module,
                                           const TrainerOptions& options, server::Facts facts,
                                           const MaterializeSegment& bring) {
  throw_if_error(check_device(plan, device_of(*module)));
  auto store = store_of(plan, groups, module, options, std::move(facts), bring);
  store->set_made_for({.groups = &groups,
                       .plan = project(plan, groups.rank()),
                       .rule = options.optimizer.kind,
                       .slots = optim::num_slots(options.optimizer),
                       .worker_copies = !options.strategy.exchange_periods.every_step()});
  return store;
}

std::unique_ptr<ParameterStore> make_committed_store(
    const plan::StepPlan& plan, const AxisGroups& groups,
    const std::shared_ptr<torch::nn::Module>& module, const TrainerOptions& options,
    std::unique_ptr<Optimizer> optimizer) {
  std::unique_ptr<ParameterStore> store;
  if (!model_axes(plan.mesh).empty()) {
    const std::shared_ptr<model::Chain> chain = chain_in_parts(module, plan);
    store = std::make_unique<ModelParallelStore>(
        groups, plan, module, options.optimizer, options.strategy.outer,
        [&](std::size_t segment) { chain->give_memory(segment); }, ModelParallelStore::Serve(),
        std::move(optimizer));
  } else if (layout_of(plan) == Layout::kHostShared) {
    store = std::make_unique<HostCopyStore>(groups, std::move(optimizer));
  } else if (layout_of(plan) == Layout::kAveraged) {
    std::unique_ptr<FusedOptimizer> own(&dynamic_cast<FusedOptimizer&>(*optimizer));
    static_cast<void>(optimizer.release());
    store = std::make_unique<AveragedStore>(groups, std::move(own), options.strategy.outer);
  } else {
    store = std::make_unique<ReplicatedStore>(groups, std::move(optimizer));
  }
  store->set_made_for({.groups = &groups,
                       .plan = project(plan, groups.rank()),
                       .rule = options.optimizer.kind,
                       .slots = optim::num_slots(options.optimizer)});
  return store;
}

}  // namespace stormo::train
