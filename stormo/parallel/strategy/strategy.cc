#include <stormo/parallel/strategy/strategy.h>

#include <algorithm>
#include <string>
#include <utility>

#include <stormo/base/requirements.h>
#include <stormo/parallel/computation/commit_before_update.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/logical_shards.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/parallel/computation/trust_ratios.h>
#include <stormo/parallel/inside_layers/context_parallel.h>
#include <stormo/parallel/inside_layers/sequence_parallel.h>
#include <stormo/parallel/inside_layers/spatial.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/plan/adasum.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/logical_shards.h>

namespace stormo::parallel {
namespace {

using Parameters = Strategy::Parameters;

/// What a strategy that lacks some keys says to them.
Status check_keys(const Strategy& s, const StrategyRow& row) {
  const Strategy without;
  const auto refused = [&](std::string_view key, bool given) { return given && !row.has_key(key); };
  if (refused("worker_ranks", s.worker_ranks != without.worker_ranks)) {
    std::string others;
    for (const std::string_view name : strategies_with("worker_ranks")) {
      others += (others.empty() ? "'" : ", '") + std::string(name) + "'";
    }
    return refuse(
        s, "has no workers of several ranks; leave out worker_ranks, or use one of " + others);
  }
  if (refused("labels", s.labels != without.labels) ||
      refused("column_counts", s.column_counts != without.column_counts)) {
    return refuse(s, "has whole samples on each rank; leave out labels and column_counts");
  }
  if (s.parameters == Parameters::kAuto || std::ranges::count(row.parameters, s.parameters) > 0) {
    return {};
  }
  if (s.parameters == Parameters::kSharded && !row.parameters.empty()) {
    return refuse(s, "does not shard parameters; use 'fsdp'");
  }
  return refuse(s, std::string(row.other_parameters));
}

/// Whether ranks of a host have one copy, whatever else holds.
bool must_share(const Strategy& s) {
  return s.parameters == Parameters::kHostShared ||
         row_of(s.kind).parameters == std::vector{Parameters::kHostShared};
}

/// Where ranks are, and whether those of a host can share.
Status check_hosts(const Strategy& s, const StrategyRow& row, const Job& job) {
  if (row.one_host && job.hosts() > 1) {
    return refuse(s, "keeps to one host, the job has " + std::to_string(job.hosts()) +
                         "; use 'multi_worker_mirrored' or 'ddp'");
  }
  if (!must_share(s)) return {};
  if (job.local() > 1 && !job.workers.can_share) {
    return refuse(s,
                  "cannot share parameters inside a host: that takes Stormo's own engine and "
                  "optimizers, float32 or float64 parameters and dense gradients; use "
                  "parameters=replicated");
  }
  if (job.uniform()) return {};
  return refuse(s,
                "needs as many ranks on one host as on the others; or use parameters=replicated");
}

/// For messages that list how replicas are cut.
std::string grid_of(const Strategy& s) {
  if (s.spatial.empty()) return {};
  return ", spatial " + std::to_string(s.spatial[0]) + " x " + std::to_string(s.spatial[1]);
}

Status check_spatial(const Strategy& s) {
  if (s.spatial.empty()) return {};
  const bool in_range =
      std::ranges::all_of(s.spatial, [](std::int64_t n) { return n >= 1 && n <= plan::kMaxRanks; });
  if (s.spatial.size() != 2 || !in_range || s.spatial[0] * s.spatial[1] == 1) {
    return refuse(s,
                  "has a grid of ranks that is not two numbers, its rows and columns; write e.g. "
                  "spatial=2,2 for four ranks, or leave out spatial");
  }
  if (row_of(s.kind).cuts_images && s.pipeline == 1 && s.tensor == 1 && s.context == 1) return {};
  return refuse(s,
                "does not cut images with what else is chosen: spatial goes with 'ddp' and the "
                "mirrored strategies, without pipeline, tensor and context");
}

/// Replicas, or workers, of several ranks.
Status check_cut(const Strategy& s, const StrategyRow& row, const Job& job) {
  const std::int64_t replica = ranks_of_replica(s);
  if (replica == 1) return {};
  if (row.check_cut == nullptr) {
    return refuse(s,
                  "does not cut replicas; leave out pipeline, tensor and context, or use 'ddp' or "
                  "'fsdp'");
  }
  STORMO_RETURN_IF_ERROR(row.check_cut(s, job));
  if (s.parameters == Parameters::kHostShared) {
    return refuse(s, "has no copy that parts of the model share; leave out parameters");
  }
  if (job.step.bucket_bytes > 0) {
    return refuse(s,
                  "averages the gradients of a part of the model together after its last backward; "
                  "leave out bucket_bytes");
  }
  if (job.ranks() % replica == 0) return {};
  return refuse(
      s, "has replicas of " + std::to_string(replica) + " ranks (pipeline " +
             std::to_string(s.pipeline) + ", tensor " + std::to_string(s.tensor) + ", context " +
             std::to_string(s.context) + grid_of(s) + "), and " + std::to_string(job.ranks()) +
             " ranks are no multiple of that; start a multiple of " + std::to_string(replica) +
             (has_servers(s.kind) ? " beside the server processes" : "") +
             ", or change these numbers");
}

/// The numbers of ranks that compute the same samples together, and what goes with them.
Status check_model_parallel(const Strategy& s) {
  if (s.pipeline < 1) return refuse(s, "has at least 1 stage, not " + std::to_string(s.pipeline));
  if (s.tensor < 1) {
    return refuse(s, "computes a layer on at least 1 rank, not " + std::to_string(s.tensor));
  }
  if (s.context < 1) {
    return refuse(s, "has positions on at least 1 rank, not " + std::to_string(s.context));
  }
  STORMO_RETURN_IF_ERROR(check_spatial(s));
  const bool many = std::max({s.pipeline, s.tensor, s.context}) > plan::kMaxRanks;
  if (many || ranks_of_replica(s) > plan::kMaxRanks) {
    return refuse(s, "has more than " + std::to_string(plan::kMaxRanks) + " ranks");
  }
  const Strategy without;
  const bool says_how = s.schedule != without.schedule || s.chunks != without.chunks ||
                        s.cut != without.cut || !s.weight_stashing;
  if (s.pipeline == 1 && says_how) {
    return refuse(s,
                  "has no pipeline: set pipeline to 2 or more, or leave out schedule, chunks, cut "
                  "and weight_stashing");
  }
  if (s.context == 1 && s.attention != without.attention) {
    return refuse(s,
                  "has all positions on each rank: set context to 2 or more, or leave out "
                  "attention");
  }
  if (s.tensor == 1 && s.sequence_parallel) {
    return refuse(s,
                  "computes each layer on one rank: set tensor to 2 or more, or leave out "
                  "sequence_parallel");
  }
  return {};
}

/// What an encoded number becomes depends on its neighbours.
Status check_encoding(const Strategy& s, const StepOptions& step) {
  const CodecRow& codec = row_of(step.reduction.codec);
  if (codec.encodes() && s.tensor > 1) {
    return refuse(s, "rounds in codec " + std::string(codec.word) +
                         " what the ranks of a layer have as a whole together with their slices, "
                         "so that their copies would differ; leave out tensor, or use another "
                         "compression, such as bfloat16");
  }
  if (codec.has_factors() && s.kind == Strategy::Kind::kFsdp) {
    return refuse(s, "adds up parts of gradients, and codec " + std::string(codec.word) +
                         " is of whole matrices; use 'ddp', or another compression");
  }
  if (codec.error_feedback && step.scale_loss) {
    return refuse(s, "keeps what codec " + std::string(codec.word) +
                         " lost in units of the scaled loss, whose scale changes; use "
                         "precision=bfloat16 or float32, or another compression");
  }
  return {};
}

/// Gradients of whole replicas, each of its own samples.
Status check_adasum(const Strategy& s, const Job& job) {
  if (job.step.reduction.all_reduce != plan::kAdasum) return {};
  Requirements require;
  require(row_of(s.kind).all_reduces,
          "does not combine whole gradients of replicas by adasum: leave it out, or use 'ddp'");
  require(!must_share(s),
          "adds up in shared memory what ranks of a host have, and adasum takes copies: use 'ddp' "
          "with parameters=replicated");
  require(s.tensor == 1 && s.context == 1 && s.spatial.empty(),
          "has gradients of slices or of parts of samples on a rank, and adasum takes those of "
          "whole replicas: leave out tensor, context and spatial");
  require(!job.sparse,
          "combines dense gradients by adasum: leave out what makes them sparse, or adasum");
  return require.wrong().empty() ? Status() : refuse(s, require.wrong());
}

/// Where ranks do not exchange gradients, each would find overflows of its own.
Status check_loss_scale(const Strategy& s, const StepOptions& step) {
  if (!step.scale_loss || row_of(s.kind).trains_as_one) return {};
  return refuse(s,
                "would have a loss scale of its own on every rank; use bfloat16 or float32, or "
                "'ddp'");
}

/// What has another order of additions than logical shards, or none.
Status check_shards_of_batch(const Strategy& s, const Job& job) {
  const StepOptions& step = job.step;
  if (step.logical_shards == 0) return {};
  Requirements require;
  require(s.kind == Strategy::Kind::kDdp && ranks_of_replica(s) == 1,
          "they are for replicas of one rank: use strategy.kind=ddp, without pipeline, tensor, "
          "context and spatial");
  require(step.logical_shards >= job.ranks() && step.logical_shards <= plan::kMaxShards,
          "each rank computes at least one, and there are " + std::to_string(job.ranks()) +
              " ranks: give " + std::to_string(job.ranks()) + " to " +
              std::to_string(plan::kMaxShards) + ", or start fewer ranks");
  require(s.parameters != Parameters::kHostShared,
          "each rank has the parameters: leave out strategy.parameters=host_shared");
  require(step.micro_batches == 1,
          "each is a micro-batch: leave out train.micro_batches, and give more of them to save "
          "memory");
  require(step.reduction == ReductionForm{} && step.bucket_bytes == 0,
          "gradients are added up in one way: leave out strategy.compression, reducer, "
          "bucket_bytes and deterministic");
  require(!job.sparse, "they have dense gradients: leave out what makes them sparse");
  if (require.wrong().empty()) return {};
  return invalid_argument(std::to_string(step.logical_shards) +
                          " logical shards: " + require.wrong());
}

Result<Pass> stages_of(const Strategy& s) {
  STORMO_ASSIGN_OR_RETURN(PipelineSchedule schedule, pipeline_schedule(s.schedule));
  return pipeline({.stages = s.pipeline,
                   .chunks = s.chunks,
                   .schedule = std::move(schedule),
                   .cut = s.cut,
                   .period = s.period,
                   .weight_stashing = s.weight_stashing});
}

Status check(const Strategy& s, const Job& job) {
  const StrategyRow& row = row_of(s.kind);
  if (row.distribute == nullptr) {
    return refuse(
        s,
        "is chosen by 'stormo train' or a Trainer, which measure steps; elsewhere name one "
        "that 'stormo plan search' has found");
  }
  STORMO_RETURN_IF_ERROR(check_keys(s, row));
  STORMO_RETURN_IF_ERROR(check_shards_of_batch(s, job));
  if (row.check != nullptr) STORMO_RETURN_IF_ERROR(row.check(s, job));
  STORMO_RETURN_IF_ERROR(check_loss_scale(s, job.step));
  STORMO_RETURN_IF_ERROR(check_encoding(s, job.step));
  STORMO_RETURN_IF_ERROR(check_adasum(s, job));
  STORMO_RETURN_IF_ERROR(check_model_parallel(s));
  STORMO_RETURN_IF_ERROR(check_cut(s, row, job));
  return check_hosts(s, row, job);
}

}  // namespace

std::int64_t ranks_of_worker(const Strategy& s) {
  const bool may_be_cut = row_of(s.kind).servers == StrategyRow::Servers::kParameters;
  return s.worker_ranks * (may_be_cut ? ranks_of_replica(s) : 1);
}

bool has_servers(Strategy::Kind kind) {
  return row_of(kind).servers != StrategyRow::Servers::kNone;
}

bool is_population(Strategy::Kind kind) { return row_of(kind).is_population; }

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const StrategyRow& row : strategy_rows()) out.emplace_back(row.name);
    return out;
  }();
  return names;
}

const std::vector<std::string>& parameter_names() {
  static const std::vector<std::string> names = {"auto", "replicated", "host_shared", "sharded"};
  return names;
}

const std::vector<std::string>& average_state_names() {
  static const std::vector<std::string> names = {"auto", "yes", "no"};
  return names;
}

Status check_strategy(const Strategy& strategy, const Workers& workers, const StepOptions& step) {
  return check(strategy, {workers, step});
}

Status check_logical_shards(const Strategy& strategy, const Workers& workers,
                            const StepOptions& step) {
  return check_shards_of_batch(strategy, {workers, step});
}

Result<plan::StepPlan> plan_for(const Strategy& strategy, plan::ModelShape model,
                                const Workers& workers, const StepOptions& step) {
  const Job job{workers, step, std::ranges::any_of(flatten(model), &plan::ParameterShape::sparse)};
  STORMO_RETURN_IF_ERROR(check(strategy, job));
  const StrategyRow& row = row_of(strategy.kind);
  Strategy replicated = strategy;
  // norms of whole parameters are added up by ranks that may be lost meanwhile
  const bool is_alone = step.logical_shards > 0 || (step.commit && step.trust_ratios) ||
                        step.reduction.all_reduce == plan::kAdasum;
  if (is_alone) replicated.parameters = Parameters::kReplicated;
  std::vector<Pass> passes;
  if (step.micro_batches != 1) passes.push_back(micro_batches(step.micro_batches));
  if (step.scale_loss) passes.push_back(scale_loss());
  if (step.clip) passes.push_back(clip_gradients());
  if (strategy.pipeline > 1) {
    STORMO_ASSIGN_OR_RETURN(passes.emplace_back(), stages_of(strategy));
  }
  if (strategy.context > 1) {
    passes.push_back(context_parallel(strategy.context, strategy.attention));
  }
  if (strategy.tensor > 1) passes.push_back(tensor_parallel(strategy.tensor));
  if (!strategy.spatial.empty()) {
    passes.push_back(
        spatial(static_cast<int>(strategy.spatial[0]), static_cast<int>(strategy.spatial[1])));
  }
  const auto copies =
      static_cast<int>(job.ranks() / (has_servers(strategy.kind) ? ranks_of_worker(strategy)
                                                                 : ranks_of_replica(strategy)));
  if (copies > 1 || has_servers(strategy.kind)) row.distribute(passes, replicated, job, copies);
  if (strategy.sequence_parallel) passes.push_back(sequence_parallel());
  // servers update, each the whole parameters that it has
  const bool workers_update = row.servers != StrategyRow::Servers::kParameters;
  if (step.trust_ratios && job.ranks() > 1 && workers_update) passes.push_back(trust_ratios());
  if (step.logical_shards > 0) passes.push_back(logical_shards(step.logical_shards));
  if (step.recompute) passes.push_back(recompute());
  if (step.bucket_bytes > 0) passes.push_back(bucket(step.bucket_bytes));
  if (step.reduction != ReductionForm{}) passes.push_back(reduce_with(step.reduction));
  if (step.commit) passes.push_back(commit_before_update());
  const bool by_columns = job.ranks() > 1 && row.has_key("column_counts");
  model = without_unused_forms(std::move(model),
                               {.slices = strategy.tensor > 1 || by_columns,
                                .positions = strategy.context > 1 || strategy.sequence_parallel,
                                .places = !strategy.spatial.empty(),
                                .factors = row_of(step.reduction.codec).has_factors()});
  return compose(one_device(std::move(model)), passes);
}

}  // namespace stormo::parallel
