#include <stormo/parallel/strategy/strategy.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <stormo/parallel/computation/by_segment.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/parallel/computation/trust_ratios.h>
#include <stormo/parallel/inside_layers/context_parallel.h>
#include <stormo/parallel/inside_layers/sequence_parallel.h>
#include <stormo/parallel/inside_layers/spatial.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/inside_layers/vertical.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/parallel/replicas/host_shared.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/servers/elastic_averaging.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/limits.h>

namespace stormo::parallel {
namespace {

using Parameters = Strategy::Parameters;

struct Shape {
  int ranks = 1, hosts = 1, local = 1;
  bool uniform = true;
};

Shape shape_of(const Workers& w) {
  Shape s;
  s.hosts = static_cast<int>(w.ranks_per_host.size());
  s.local = w.ranks_per_host.front();
  s.ranks = std::accumulate(w.ranks_per_host.begin(), w.ranks_per_host.end(), 0);
  s.uniform = std::all_of(w.ranks_per_host.begin(), w.ranks_per_host.end(),
                          [&s](int n) { return n == s.local; });
  return s;
}

Status refuse(const Strategy& strategy, const std::string& why) {
  return invalid_argument("strategy '" + strategy_names()[static_cast<std::size_t>(strategy.kind)] +
                          "' " + why);
}

Status check(const Strategy& s, const Shape& shape, const Workers& w, bool has_tables) {
  const bool one_host =
      s.kind == Strategy::Kind::kMirrored || s.kind == Strategy::Kind::kCentralStorage;
  if (s.kind == Strategy::Kind::kOneDevice && shape.ranks > 1) {
    return refuse(s, "trains on one rank, the job has " + std::to_string(shape.ranks) +
                         "; use 'ddp', or start one rank");
  }
  if (one_host && shape.hosts > 1) {
    return refuse(s, "keeps to one host, the job has " + std::to_string(shape.hosts) +
                         "; use 'multi_worker_mirrored' or 'ddp'");
  }
  if (s.kind == Strategy::Kind::kCentralStorage && s.parameters == Parameters::kReplicated) {
    return refuse(s, "has one copy of the parameters; leave out parameters, or use 'mirrored'");
  }
  if (s.kind == Strategy::Kind::kFsdp && s.parameters == Parameters::kReplicated) {
    return refuse(s, "does not replicate parameters; leave out parameters, or use 'ddp'");
  }
  if (s.kind != Strategy::Kind::kFsdp && s.parameters == Parameters::kSharded) {
    return refuse(s, "does not shard parameters; use 'fsdp'");
  }
  if (s.kind == Strategy::Kind::kFsdp && has_tables) {
    return refuse(s, "cannot cut gradients that are sparse; use 'ddp', or dense gradients");
  }
  if (s.stage < 1 || s.stage > 3) {
    return refuse(s, "has stages 1 to 3, not " + std::to_string(s.stage));
  }
  const bool must_share =
      s.parameters == Parameters::kHostShared || s.kind == Strategy::Kind::kCentralStorage;
  if (must_share && shape.local > 1 && !w.can_share) {
    return refuse(s,
                  "cannot share parameters inside a host: that takes Stormo's own engine and "
                  "optimizers, float32 or float64 parameters and dense gradients; use "
                  "parameters=replicated");
  }
  const bool needs_uniform = must_share || (s.kind == Strategy::Kind::kFsdp && s.hybrid);
  if (needs_uniform && !shape.uniform) {
    return refuse(s, std::string("needs as many ranks on one host as on the others; or ") +
                         (must_share ? "use parameters=replicated" : "leave out hybrid"));
  }
  return {};
}

Status check_worker_ranks(const Strategy& s, const Shape& shape) {
  if (s.worker_ranks == 1) return {};
  if (s.kind != Strategy::Kind::kParameterServer) {
    return refuse(s, "has no workers of several ranks; leave out worker_ranks, or use " +
                         std::string("'parameter_server'"));
  }
  if (s.worker_ranks < 1 || s.worker_ranks > plan::kMaxRanks) {
    return refuse(s, "has workers of at least 1 rank, not " + std::to_string(s.worker_ranks));
  }
  if (shape.ranks % s.worker_ranks == 0) return {};
  return refuse(s, "has workers of " + std::to_string(s.worker_ranks) + " ranks (worker_ranks), " +
                       "and " + std::to_string(shape.ranks) +
                       " ranks are no multiple of that; start others, or change worker_ranks");
}

Status check_servers(const Strategy& s, const Shape& shape) {
  STORMO_RETURN_IF_ERROR(check_worker_ranks(s, shape));
  if (s.kind != Strategy::Kind::kParameterServer) return {};
  if (s.parameters != Parameters::kAuto) {
    return refuse(s, "has the parameters on servers; leave out parameters, or use 'ddp'");
  }
  return {};
}

Status check_averaging(const Strategy& s) {
  const bool own =
      s.kind == Strategy::Kind::kParameterAveraging || s.kind == Strategy::Kind::kElasticAveraging;
  if (!own || s.parameters == Parameters::kAuto) return {};
  return refuse(s, "has parameters on every rank; leave out parameters, or use 'ddp'");
}

Status check_vertical(const Strategy& s, const StepOptions& step) {
  const Strategy without;
  const bool vertical = s.kind == Strategy::Kind::kVertical;
  if (!vertical && (s.labels != without.labels || s.column_counts != without.column_counts)) {
    return refuse(s, "has whole samples on each rank; leave out labels and column_counts");
  }
  if (!vertical) return {};
  if (s.parameters != Parameters::kAuto) {
    return refuse(s, "has a part of the first layer on each rank; leave out parameters");
  }
  if (step.bucket_bytes > 0) {
    return refuse(s, "averages no gradients; leave out bucket_bytes");
  }
  return {};
}

/// Several ranks, on each host where shards stay inside of hosts, have the same to shard.
Status check_copies(const Strategy& s, const Shape& shape) {
  const std::int64_t replica = ranks_of_replica(s);
  if (shape.ranks == replica) {
    return refuse(s, "has nothing to shard: all " + std::to_string(replica) +
                         " ranks compute one replica (pipeline " + std::to_string(s.pipeline) +
                         ", tensor " + std::to_string(s.tensor) + ", context " +
                         std::to_string(s.context) +
                         "), and each has another part of it or other positions; use 'ddp', or "
                         "start more ranks");
  }
  if (!s.hybrid || shape.hosts == 1) return {};
  if (shape.local % replica == 0 && shape.local > replica) return {};
  return refuse(s, "shards over the ranks of a host (hybrid), and " + std::to_string(shape.local) +
                       " ranks of a host are not several times the " + std::to_string(replica) +
                       " that compute a replica; leave out hybrid");
}

/// For messages that list how replicas are cut.
std::string grid_of(const Strategy& s) {
  if (s.spatial.empty()) return {};
  return ", spatial " + std::to_string(s.spatial[0]) + " x " + std::to_string(s.spatial[1]);
}

/// Whether all ranks have the same gradients.
bool replicates(Strategy::Kind kind) {
  return kind == Strategy::Kind::kDdp || kind == Strategy::Kind::kMirrored ||
         kind == Strategy::Kind::kMultiWorkerMirrored;
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
  if (replicates(s.kind) && s.pipeline == 1 && s.tensor == 1 && s.context == 1) return {};
  return refuse(s,
                "does not cut images with what else is chosen: spatial goes with 'ddp' and the "
                "mirrored strategies, without pipeline, tensor and context");
}

/// Replicas that are cut, and whose parts are averaged now and then. Copies of what several ranks
/// have stay equal: so the averages of all parts are added up in the same order.
Status check_averaged_parts(const Strategy& s, const Workers& w) {
  std::string wrong;
  const auto require = [&wrong](bool holds, const std::string& message) {
    if (!holds) wrong += (wrong.empty() ? "" : "; ") + message;
  };
  require(s.context == 1,
          "averages no gradients, which ranks with parts of the positions have to: leave out "
          "context, or use 'ddp'");
  const Result<PipelineSchedule> schedule = pipeline_schedule(s.schedule);
  require(s.pipeline == 1 || !schedule.ok() || !schedule->overlap,
          "averages after whole steps, and those of schedule '" + s.schedule +
              "' overlap: leave out schedule, or use 'ddp'");
  const std::int64_t replica = ranks_of_replica(s);
  const std::int64_t first = w.ranks_per_host.front();
  const bool alike = std::ranges::all_of(w.ranks_per_host, [&](std::int64_t here) {
    return here % replica == 0 || (here == first && replica % here == 0);
  });
  require(w.ranks_per_host.size() == 1 || alike,
          "has replicas of " + std::to_string(replica) +
              " ranks that lie on hosts in different ways, so that copies of one part "
              "would be added up in different orders: start a multiple of " +
              std::to_string(replica) + " ranks on each host");
  return wrong.empty() ? Status() : refuse(s, wrong);
}

/// Workers of servers that are cut, and whose parts have servers of their own.
Status check_served_parts(const Strategy& s, const StepOptions& step) {
  std::string wrong;
  const auto require = [&wrong](bool holds, const std::string& message) {
    if (!holds) wrong += (wrong.empty() ? "" : "; ") + message;
  };
  require(s.context == 1,
          "cuts workers into stages and slices only: leave out context, or use 'ddp'");
  require(s.worker_ranks == 1,
          "has a rank for each part of a worker: leave out worker_ranks, or pipeline and tensor");
  require(s.tensor == 1 || !step.trust_ratios,
          "has servers with slices, which do not know the norms of whole parameters: leave out "
          "tensor, or take an optimizer other than lars and lamb");
  const Result<PipelineSchedule> schedule = pipeline_schedule(s.schedule);
  require(!schedule.ok() || !schedule->overlap,
          "pushes after whole steps, and those of schedule '" + s.schedule +
              "' overlap: leave out schedule, or use 'ddp'");
  require(s.exchange.averages || s.exchange.every_step(),
          "has parts of workers that pull and push in every step: leave out fetch_every and "
          "push_every, or pipeline and tensor");
  require(!s.exchange.averages,
          "has servers that average workers of one rank: leave out pipeline and tensor, or use "
          "'parameter_averaging'");
  return wrong.empty() ? Status() : refuse(s, wrong);
}

/// Strategies whose replicas may be cut.
Status check_cut(const Strategy& s, const Workers& w, const StepOptions& step) {
  if (s.kind == Strategy::Kind::kParameterServer) return check_served_parts(s, step);
  if (s.kind == Strategy::Kind::kParameterAveraging) return check_averaged_parts(s, w);
  if (replicates(s.kind) || s.kind == Strategy::Kind::kFsdp) return {};
  return refuse(s,
                "does not cut replicas; leave out pipeline, tensor and context, or use 'ddp' or "
                "'fsdp'");
}

Status check_model_parallel(const Strategy& s, const Shape& shape, const Workers& w,
                            const StepOptions& step) {
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
  const std::int64_t replica = ranks_of_replica(s);
  if (replica == 1) return {};
  STORMO_RETURN_IF_ERROR(check_cut(s, w, step));
  if (s.parameters == Parameters::kHostShared) {
    return refuse(s, "has no copy that parts of the model share; leave out parameters");
  }
  if (step.bucket_bytes > 0) {
    return refuse(s,
                  "averages the gradients of a part of the model together after its last backward; "
                  "leave out bucket_bytes");
  }
  if (shape.ranks % replica == 0)
    return s.kind == Strategy::Kind::kFsdp ? check_copies(s, shape) : Status();
  return refuse(
      s, "has replicas of " + std::to_string(replica) + " ranks (pipeline " +
             std::to_string(s.pipeline) + ", tensor " + std::to_string(s.tensor) + ", context " +
             std::to_string(s.context) + grid_of(s) + "), and " + std::to_string(shape.ranks) +
             " ranks are no multiple of that; start a multiple of " + std::to_string(replica) +
             (has_servers(s.kind) ? " beside the server processes" : "") +
             ", or change these numbers");
}

/// A block has one scale for neighbours.
Status check_blocks(const Strategy& s, const StepOptions& step) {
  const plan::CodecRow& codec = row_of(step.reduction.codec);
  if (codec.in_blocks() && s.tensor > 1) {
    return refuse(s, "rounds in codec " + std::string(codec.word) +
                         " what the ranks of a layer have as a whole together with their slices, "
                         "so that their copies would differ; leave out tensor, or use another "
                         "compression, such as bfloat16");
  }
  if (codec.in_blocks() && step.scale_loss) {
    return refuse(s, "keeps what codec " + std::string(codec.word) +
                         " lost in units of the scaled loss, whose scale changes; use "
                         "precision=bfloat16 or float32, or another compression");
  }
  return {};
}

/// Where ranks do not exchange gradients, each would find overflows of its own.
Status check_loss_scale(const Strategy& s, const StepOptions& step) {
  const bool own = has_servers(s.kind) || s.kind == Strategy::Kind::kParameterAveraging;
  if (!step.scale_loss || !own) return {};
  return refuse(s,
                "would have a loss scale of its own on every rank; use bfloat16 or float32, or "
                "'ddp'");
}

// Sharing costs nothing inside a host, and saves memory. Between hosts alone there is nothing to
// share, and plain fsdp shards over all of them, which needs less memory than a copy per host.
bool shares(const Strategy& s, const Shape& shape, const Workers& w) {
  if (ranks_of_replica(s) > 1) return false;
  if (s.parameters == Parameters::kHostShared || s.kind == Strategy::Kind::kCentralStorage)
    return true;
  if (s.parameters != Parameters::kAuto || !w.can_share || !shape.uniform) return false;
  if (s.kind == Strategy::Kind::kDdp) return shape.local > 1;
  return s.kind == Strategy::Kind::kFsdp && shape.local > 1 && (shape.hosts == 1 || s.hybrid);
}

/// Several copies of the model, or of what each rank has of it: replicas, or shards of one.
void add_copies(std::vector<Pass>& passes, const Strategy& s, const Shape& shape,
                const StepOptions& step, int copies) {
  if (s.kind == Strategy::Kind::kParameterAveraging) {
    return passes.push_back(parameter_averaging(copies, s.period));
  }
  if (s.kind != Strategy::Kind::kFsdp) return passes.push_back(mirrored(copies));
  const bool hybrid = s.hybrid && shape.hosts > 1;
  if (hybrid) passes.push_back(mirrored(shape.hosts));
  passes.push_back(sharded({.stage = s.stage,
                            .ranks = hybrid ? copies / shape.hosts : copies,
                            .prefetch = step.prefetch}));
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

/// Workers of parameter servers.
Result<std::vector<Pass>> served(const Strategy& s, const Shape& shape, const StepOptions& step) {
  std::vector<Pass> passes;
  if (s.pipeline > 1) {
    STORMO_ASSIGN_OR_RETURN(passes.emplace_back(), stages_of(s));
  }
  if (s.tensor > 1) passes.push_back(tensor_parallel(s.tensor));
  const auto of_worker = static_cast<int>(ranks_of_worker(s));
  passes.push_back(parameter_server(shape.ranks / of_worker, s.exchange, s.worker_ranks));
  if (step.overlap_exchange && s.exchange.every_step() && of_worker == 1) {
    passes.push_back(by_segment());
    passes.push_back(overlap_exchange());
  }
  if (s.sequence_parallel) passes.push_back(sequence_parallel());
  return passes;
}

Status check_step(const Strategy& s, const Shape& shape, const Workers& workers,
                  const StepOptions& step) {
  STORMO_RETURN_IF_ERROR(check_servers(s, shape));
  STORMO_RETURN_IF_ERROR(check_averaging(s));
  STORMO_RETURN_IF_ERROR(check_vertical(s, step));
  STORMO_RETURN_IF_ERROR(check_loss_scale(s, step));
  STORMO_RETURN_IF_ERROR(check_blocks(s, step));
  return check_model_parallel(s, shape, workers, step);
}

}  // namespace

bool has_servers(Strategy::Kind kind) {
  return kind == Strategy::Kind::kParameterServer || kind == Strategy::Kind::kElasticAveraging;
}

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names = {
      "one_device", "mirrored",         "multi_worker_mirrored", "central_storage",   "ddp",
      "fsdp",       "parameter_server", "parameter_averaging",   "elastic_averaging", "vertical",
      "auto"};
  return names;
}

const std::vector<std::string>& parameter_names() {
  static const std::vector<std::string> names = {"auto", "replicated", "host_shared", "sharded"};
  return names;
}

Result<plan::StepPlan> plan_for(const Strategy& strategy, plan::ModelShape model,
                                const Workers& workers, const StepOptions& step) {
  if (strategy.kind == Strategy::Kind::kAuto) {
    return refuse(strategy,
                  "is chosen by 'stormo train' before it starts ranks; elsewhere name one that "
                  "'stormo plan search' has found");
  }
  const Shape shape = shape_of(workers);
  const bool has_tables =
      std::ranges::any_of(flatten(model), [](const plan::ParameterShape* p) { return p->sparse; });
  STORMO_RETURN_IF_ERROR(check_step(strategy, shape, workers, step));
  STORMO_RETURN_IF_ERROR(check(strategy, shape, workers, has_tables));
  std::vector<Pass> passes;
  if (step.micro_batches != 1) passes.push_back(micro_batches(step.micro_batches));
  if (step.scale_loss) passes.push_back(scale_loss());
  if (step.clip) passes.push_back(clip_gradients());
  if (strategy.kind == Strategy::Kind::kParameterServer) {
    STORMO_ASSIGN_OR_RETURN(const std::vector<Pass> of_workers, served(strategy, shape, step));
    passes.insert(passes.end(), of_workers.begin(), of_workers.end());
  } else if (strategy.kind == Strategy::Kind::kElasticAveraging) {
    passes.push_back(elastic_averaging(shape.ranks, strategy.period));
  } else if (const auto replica = static_cast<int>(ranks_of_replica(strategy)); replica > 1) {
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
    if (shape.ranks > replica) add_copies(passes, strategy, shape, step, shape.ranks / replica);
    if (strategy.sequence_parallel) passes.push_back(sequence_parallel());
  } else if (shape.ranks == 1) {
  } else if (strategy.kind == Strategy::Kind::kVertical) {
    passes.push_back(vertical(
        {.ranks = shape.ranks, .labels = strategy.labels, .columns = strategy.column_counts}));
  } else if (shares(strategy, shape, workers)) {
    passes.push_back(host_shared(shape.hosts, shape.local));
  } else {
    add_copies(passes, strategy, shape, step, shape.ranks);
  }
  // servers update, each the whole parameters that it has
  const bool workers_update = strategy.kind != Strategy::Kind::kParameterServer;
  if (step.trust_ratios && shape.ranks > 1 && workers_update) passes.push_back(trust_ratios());
  if (step.recompute) passes.push_back(recompute());
  if (step.bucket_bytes > 0) passes.push_back(bucket(step.bucket_bytes));
  if (step.reduction != ReductionForm{}) passes.push_back(reduce_with(step.reduction));
  model = without_unused_forms(
      std::move(model), {.slices = strategy.tensor > 1 ||
                                   (strategy.kind == Strategy::Kind::kVertical && shape.ranks > 1),
                         .positions = strategy.context > 1 || strategy.sequence_parallel,
                         .places = !strategy.spatial.empty()});
  return compose(one_device(std::move(model)), passes);
}

}  // namespace stormo::parallel
