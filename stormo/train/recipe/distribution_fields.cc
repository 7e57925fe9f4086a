// Keys of a recipe that say how ranks share a run.
#include <algorithm>
#include <iterator>

#include <stormo/parallel/pipeline/pipeline_schedule.h>
#include <stormo/plan/limits.h>
#include <stormo/train/recipe/field_lists.h>
#include <stormo/train/step/reducers.h>

namespace stormo::train {
namespace {

using protocol::PolicyOptions;

/// Places in options of the servers.
template <auto kMember>
FieldPlace policy_place(Recipe& r) {
  return &(r.train.servers.policy.*kMember);
}

std::vector<std::string_view> reducer_names() {
  std::vector<std::string_view> out;
  for (const ReducerRow& row : kReducers) out.push_back(row.name);
  return out;
}

std::vector<RecipeField> strategy_fields() {
  return {
      {"strategy.kind", "how the work is shared among ranks",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.kind; }, 0, 0,
       names(parallel::strategy_names())},
      {"strategy.parameters",
       "copies of the parameters: \"auto\": one per host where that is possible",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.parameters; }, 0, 0,
       names(parallel::parameter_names())},
      {"strategy.stage", "fsdp: 1 shards the optimizer's state, 2 gradients too, 3 parameters too",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.stage; }, 1, 3},
      {"strategy.hybrid", "fsdp: shard inside hosts, replicate across them",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.hybrid; }},
      {"strategy.pipeline",
       "stages by which layers are cut; ranks / (pipeline * tensor * context) replicas, or workers "
       "of servers",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.pipeline; }, 1, plan::kMaxRanks},
      {"strategy.tensor", "ranks that compute each layer together, each with its slices of it",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.tensor; }, 1, plan::kMaxRanks},
      {"strategy.sequence_parallel",
       "tensor: each of its ranks has part of the positions where layers are not split",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.sequence_parallel; }},
      {"strategy.context", "ranks that have parts of the positions of each sample",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.context; }, 1, plan::kMaxRanks},
      {"strategy.attention",
       "context: what attention exchanges: keys and values in a ring, or heads for positions",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.attention; }, 0, 0,
       one_of({"ring", "heads"})},
      {"strategy.spatial",
       "rows and columns of the ranks that have parts of the places of each image; []: not cut",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.spatial; }, 1, plan::kMaxRanks},
      {"strategy.schedule", "pipeline: in which order a stage computes the train.micro_batches",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.schedule; }, 0, 0,
       names(parallel::pipeline_schedule_names())},
      {"strategy.chunks", "interleaved, zero_bubble_v (2): parts of the model on each stage",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.chunks; }, 1, plan::kMaxSegments},
      {"strategy.cut", "pipeline: segments of each part of the model; []: equal operations",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.cut; }, 1, plan::kMaxSegments},
      {"strategy.labels", "vertical: the rank that has the labels",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.labels; }, 0, plan::kMaxRanks - 1},
      {"strategy.column_counts",
       "vertical, without data.parts: columns of each rank, in their order; []: as even as "
       "possible",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.column_counts; }, 1, 1e9},
  };
}

std::vector<RecipeField> gradient_fields() {
  return {
      {"strategy.reducer",
       "how replicas average gradients, or combine them (adasum); a choice means "
       "strategy.parameters=replicated",
       [](Recipe& r) -> FieldPlace { return &r.train.gradients.reducer; }, 0, 0, reducer_names()},
      {"strategy.bucket_bytes", "gradients that travel together during backward; 0: measured",
       [](Recipe& r) -> FieldPlace { return &r.train.gradients.bucket_bytes; }, 0, kMost},
      {"strategy.overlap",
       "exchange gradients and parameters while computing, where that is faster",
       [](Recipe& r) -> FieldPlace { return &r.train.gradients.overlap; }},
      {"strategy.compression",
       "the codec of gradients, or outer gradients, between ranks (auto: the one that loses least "
       "of those that hide what travels, as ranks measure it before the first step)",
       [](Recipe& r) -> FieldPlace { return &r.train.gradients.codec.kind; }, 0, 0, codec_names(),
       [](Recipe& r) { return &r.open.compression; }},
      {"strategy.density", "top_k, threshold, random_k: the share of the numbers that travels",
       [](Recipe& r) -> FieldPlace { return &r.train.gradients.codec.density; }, 1e-9, 1},
      {"strategy.momentum_correction",
       "top_k, threshold, random_k: each rank has a momentum of its own gradients, which it "
       "encodes, in place of the optimizer's (Deep Gradient Compression)",
       [](Recipe& r) -> FieldPlace { return &r.momentum_correction; }},
      {"strategy.matrix_rank", "powersgd: the rank of the matrices that travel",
       [](Recipe& r) -> FieldPlace { return &r.train.gradients.codec.matrix_rank; }, 1,
       plan::kMaxExtent},
      {"strategy.deterministic",
       "one order of additions: the bits depend on ranks and hosts, not on buckets or speed",
       [](Recipe& r) -> FieldPlace { return &r.train.gradients.deterministic; }},
  };
}

std::vector<RecipeField> server_fields() {
  return {
      {"strategy.policy", "parameter_server: when workers wait, and what becomes of a gradient",
       policy_place<&PolicyOptions::kind>, 0, 0, protocol::policy_names()},
      {"strategy.bound", "ssp: steps that a worker may be ahead of the slowest",
       policy_place<&PolicyOptions::bound>, 0, 1e9},
      {"strategy.n", "n_softsync: an update is the average of workers / n gradients",
       policy_place<&PolicyOptions::n>, 1, 4096},
      {"strategy.portions",
       "portions: into how many a batch is divided; workers take one after the other",
       policy_place<&PolicyOptions::portions>, 1, protocol::kMaxPortions},
      {"strategy.backups", "backup_workers: gradients of a step that are not waited for",
       policy_place<&PolicyOptions::backups>, 0, 4096},
      {"strategy.warm_start",
       "async: steps that the first worker does before others begin (Downpour)",
       policy_place<&PolicyOptions::warm_start>, 0, 1e9},
      {"strategy.compensation",
       "parameter_server: how the staleness of gradients is compensated for",
       policy_place<&PolicyOptions::compensation>, 0, 0, protocol::compensation_names()},
      {"strategy.lambda", "delay_compensated, adaptive_delay_compensated: factor of the correction",
       policy_place<&PolicyOptions::lambda>, 0, 1e6},
      {"strategy.lambda_decay",
       "adaptive_delay_compensated: decay of the mean square of gradients, by whose root the "
       "factor is divided",
       policy_place<&PolicyOptions::lambda_decay>, 0, 0.999999},
      {"strategy.servers",
       "parameter_server, elastic_averaging: shards of the parameters; 0: one for each worker, at "
       "most one for each parameter",
       [](Recipe& r) -> FieldPlace { return &r.train.servers.count; }, 0, 4096},
      {"strategy.server_processes",
       "parameter_server, elastic_averaging: of the ranks, how many hold the shards; 0: none, "
       "ranks share memory",
       [](Recipe& r) -> FieldPlace { return &r.train.servers.processes; }, 0, 4096},
      {"strategy.server_backups",
       "server_processes: each shard has a copy at the next server; one server and the first "
       "worker may be lost",
       [](Recipe& r) -> FieldPlace { return &r.train.servers.backups; }},
      {"strategy.worker_timeout",
       "server_processes: seconds of silence after which a worker, or a server, counts as lost",
       [](Recipe& r) -> FieldPlace { return &r.train.servers.worker_timeout_s; }, 0.1, 1e6},
      {"strategy.placement",
       "parameter_server, elastic_averaging: how parameters are placed on servers; sliced cuts "
       "them, "
       "which lars, lamb and sparse gradients do not allow",
       [](Recipe& r) -> FieldPlace { return &r.train.servers.placement; }, 0, 0,
       server::placement_rule_names()},
      {"strategy.updates",
       "parameter_server: each push writes a new version of a shard, or changes elements in place "
       "without a lock (Hogwild; async)",
       [](Recipe& r) -> FieldPlace { return &r.train.servers.updates; }, 0, 0,
       server::shard_updates_names()},
  };
}

std::vector<RecipeField> period_fields() {
  return {
      {"strategy.worker_ranks",
       "parameter_server, parameter_averaging: neighbouring ranks that are one worker, and average "
       "their gradients",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.worker_ranks; }, 1, plan::kMaxRanks},
      {"strategy.fetch_every",
       "parameter_server, async or n_softsync: steps between pulls (Downpour)",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.exchange_periods.fetch; }, 1,
       plan::kMaxPeriod},
      {"strategy.push_every",
       "parameter_server, async or n_softsync: steps between pushes (Downpour)",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.exchange_periods.push; }, 1,
       plan::kMaxPeriod},
      {"strategy.period",
       "parameter_server with policy average, parameter_averaging, gossip, tournament, "
       "codistillation, elastic_averaging: steps from one average of all, tournament, or exchange, "
       "to the next; gossip with topology pairs: from one question of a rank to the next; "
       "schedules pipedream, pipedream_2bw, ddg: steps after which the pipeline is drained; auto, "
       "of parameter_averaging: the shortest that hides what travels, as ranks measure it before "
       "the first step",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.period; },
       1,
       plan::kMaxPeriod,
       {},
       [](Recipe& r) { return &r.open.period; }},
      {"strategy.local_period",
       "parameter_averaging: > 0: steps from one average of the ranks of a host to the next, a "
       "divisor of strategy.period",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.local_period; }, 0, plan::kMaxPeriod},
      {"strategy.weight_stashing",
       "schedules pipedream, pipedream_2bw, ddg: a backward uses the parameters of its forward; "
       "false: all use the newest ones, which needs no copies, and trains otherwise",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.weight_stashing; }},
      {"strategy.warmup_steps",
       "first steps: of parameter_averaging each with an average; else, of compression top_k, "
       "threshold and random_k, with a density that falls from 1/4 to strategy.density",
       [](Recipe& r) -> FieldPlace { return &r.train.averaging.warmup_steps; }, 0, kMost},
      {"strategy.max_distance",
       "parameter_averaging: > 0: the period adapts, at most strategy.period, so that the distance "
       "between the ranks' parameters stays near or below this",
       [](Recipe& r) -> FieldPlace { return &r.train.averaging.max_distance; }, 0, 1e30},
      {"strategy.period_seconds",
       "parameter_averaging: > 0: the period adapts, at most strategy.period, so that averages "
       "come "
       "about so many seconds after each other",
       [](Recipe& r) -> FieldPlace { return &r.train.averaging.period_seconds; }, 0, 1e9},
  };
}

std::vector<RecipeField> meeting_fields() {
  return {
      {"strategy.topology",
       "gossip, tournament, codistillation: whom ranks mix parameters with, or send models to: "
       "ring, torus, hypercube, exponential, one_peer_exponential, complete; edges:0-1,1-2; "
       "weights:1/2,1/2;1/2,1/2; file:PATH; or, of gossip, pairs: one other at any time, so that "
       "nobody waits for a slow rank",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.topology; }},
      {"strategy.gradient_tracking",
       "gossip: estimate the mean gradient of all ranks, for different data on each; sends as much "
       "again",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.gradient_tracking; }},
      {"strategy.distillation",
       "codistillation: weight of the cross entropy with what others predict, in the loss",
       [](Recipe& r) -> FieldPlace { return &r.train.distillation.weight; }, 0, 1e6},
      {"strategy.temperature", "codistillation: by which all logits are divided for it",
       [](Recipe& r) -> FieldPlace { return &r.train.distillation.temperature; }, 1e-3, 1e6},
      {"strategy.burn_in", "codistillation: first steps, without it",
       [](Recipe& r) -> FieldPlace { return &r.train.distillation.burn_in; }, 0, kMost},
      {"strategy.moving_rate",
       "elastic_averaging: share of their distance by which a worker and the centre move in an "
       "exchange, at most 1 / workers; 0: not at all; -1: 0.9 / workers",
       [](Recipe& r) -> FieldPlace { return &r.train.elastic.moving_rate; }, -1, 1},
  };
}

std::vector<RecipeField> outer_fields() {
  return {
      {"strategy.outer",
       "parameter_averaging: the optimizer of the averages; nesterov: DiLoCo, slowmo: SlowMo",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.outer.kind; }, 0, 0,
       names(parallel::outer_optimizer_names())},
      {"strategy.outer_lr", "outer: its learning rate; -1: 0.7, of slowmo 1",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.outer.lr; }, -1, 1e6},
      {"strategy.outer_momentum", "outer: its momentum, below 1; -1: 0.9, of slowmo 0.5",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.outer.momentum; }, -1, 1},
      {"strategy.fragments",
       "outer: parts of the parameters, which ranks average in turn, each once in a period "
       "(streaming DiLoCo)",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.streaming.fragments; }, 1,
       plan::kMaxParameters},
      {"strategy.delay",
       "outer: steps that ranks do while a fragment travels, below period / fragments",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.streaming.delay; }, 0,
       plan::kMaxPeriod},
      {"strategy.mixing", "delay: the share of its own parameters that a rank keeps then; -1: 0.5",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.streaming.mixing; }, -1, 1},
      {"strategy.average_state",
       "parameter_averaging: whether the optimizer's state is averaged, too; auto: without outer",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.average_state; }, 0, 0,
       names(parallel::average_state_names())},
      {"strategy.state_periods",
       "parameter_averaging: steps from one average of a slot of the optimizer to the next, one "
       "for each slot: of adamw the first moments and the second ones; multiples of "
       "strategy.period; []: that of the parameters (DES-LOC)",
       [](Recipe& r) -> FieldPlace { return &r.train.strategy.state_periods; }, 1,
       plan::kMaxPeriod},
  };
}

}  // namespace

std::vector<RecipeField> distribution_fields() {
  std::vector<RecipeField> all;
  for (const auto of_part : {strategy_fields, gradient_fields, server_fields, period_fields,
                             meeting_fields, outer_fields}) {
    std::ranges::move(of_part(), std::back_inserter(all));
  }
  return all;
}

}  // namespace stormo::train
