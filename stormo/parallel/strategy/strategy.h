#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/parallel/replicas/outer_update.h>
#include <stormo/parallel/replicas/streaming.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// A strategy: a way to distribute training over the ranks, by its name and options.
struct Strategy {
  enum class Kind {
    kOneDevice,            ///< one rank
    kMirrored,             ///< replicas on one host
    kMultiWorkerMirrored,  ///< replicas on any hosts
    kCentralStorage,       ///< one copy of parameters and optimizer state, on one host
    kDdp,                  ///< data parallel on any hosts; chooses the fastest form
    kFsdp,                 ///< parameters, gradients or optimizer state sharded
    kParameterServer,     ///< parameters and optimizer state on servers, of which ranks are workers
    kParameterAveraging,  ///< each rank trains by itself, and parameters are averaged now and then
    kGossip,              ///< each rank trains by itself, and mixes parameters with neighbours
    kTournament,      ///< each rank trains by itself, and takes a neighbour's model if it is better
    kCodistillation,  ///< each rank trains by itself, also to predict what others predict
    kElasticAveraging,  ///< each rank trains by itself, and is drawn to a centre on servers
    kVertical,  ///< each rank has some columns of the samples, and its part of the first layer
    kAuto,      ///< the fastest synchronous one; the Trainer chooses it, see candidates()
  } kind = Kind::kDdp;
  /// The copies of the parameters.
  enum class Parameters {
    kAuto,        ///< kDdp, kFsdp: host-shared where possible and useful, else as `kind`
    kReplicated,  ///< one for each rank
    kHostShared,  ///< one for each host
    kSharded,     ///< kFsdp: a shard for each rank, even if host-shared is possible
  } parameters = Parameters::kAuto;
  int stage = 3;        ///< kFsdp: ZeRO stage; 1 shards optimizer state, 2 also gradients, 3 all
  bool hybrid = false;  ///< kFsdp: shard inside hosts, replicate across them
  ExchangePeriods exchange_periods = {};  ///< kParameterServer: how often workers pull and push
  /// kParameterServer, kParameterAveraging: neighbouring ranks that are one worker
  int worker_ranks = 1;
  /// kParameterAveraging, kGossip, kTournament, kCodistillation, kElasticAveraging, servers that
  /// average: steps from one to the next; of kGossip from one average of all ranks.
  /// Schedules whose steps overlap: steps after which the pipeline is drained.
  int period = 8;
  OuterOptimizer outer = {};  ///< kParameterAveraging: what follows an average
  Streaming streaming = {};   ///< the same: how averages and what follows are spread over a period
  /// kParameterAveraging: whether averages are of the optimizer's state, too.
  enum class AverageState { kAuto, kYes, kNo } average_state = AverageState::kAuto;
  /// The same: > 0: steps from one average of the ranks of a host to the next, see local_averages()
  int local_period = 0;
  /// The same: steps from one average of a slot of the optimizer to the next, by slot, see
  /// state_periods(); empty: as averages of the parameters.
  std::vector<std::int64_t> state_periods = {};
  std::string topology = "ring";   ///< kGossip and populations: see plan::mixing_of()
  bool gradient_tracking = false;  ///< kGossip: replicas estimate the mean of all gradients
  /// kDdp, mirrored kinds, kFsdp, kParameterAveraging, kGossip: stages of each replica;
  /// kParameterServer: those of each worker.
  int pipeline = 1;
  int tensor = 1;  ///< the same kinds: ranks that compute each layer together
  /// Each of these ranks has a part of the positions where layers are not split.
  bool sequence_parallel = false;
  /// The same kinds but for those of averages and servers: ranks that have parts of each sample's
  /// positions.
  int context = 1;
  plan::AttentionForm attention = plan::AttentionForm::kRing;  ///< what these ranks exchange
  /// The replicating kinds: rows and columns of the grid of ranks that have parts of each image's
  /// places; empty: one rank has all.
  std::vector<std::int64_t> spatial = {};
  std::string schedule = "1f1b";  ///< of the pipeline, see pipeline_schedule_names()
  int chunks = 1;  ///< of segments on each stage; "interleaved" and "zero_bubble_v" have several
  /// Segments of each part of the pipeline, in the order of the model; empty: equal operations.
  std::vector<std::int64_t> cut = {};
  /// Where steps overlap: a batch is computed with the parameters of its load; else the newest.
  bool weight_stashing = true;
  int labels = 0;  ///< kVertical: the rank that has the targets
  /// kVertical: columns that each rank has; empty: as even as possible.
  std::vector<std::int64_t> column_counts = {};
  bool operator==(const Strategy&) const = default;
};

/// Ranks that compute the same samples together.
inline std::int64_t ranks_of_replica(const Strategy& s) {
  std::int64_t ranks = std::int64_t{s.pipeline} * s.tensor * s.context;
  if (s.spatial.size() == 2) ranks *= s.spatial[0] * s.spatial[1];
  return ranks;
}

/// Ranks of one worker of servers: they have parts of its batch, or of its model.
std::int64_t ranks_of_worker(const Strategy& s);

/// Whether averages are of the optimizer's state, too: by default where no outer optimizer follows,
/// or it has periods of its own.
inline bool averages_state(const Strategy& s) {
  if (s.average_state != Strategy::AverageState::kAuto) {
    return s.average_state == Strategy::AverageState::kYes;
  }
  return s.outer.kind == OuterOptimizer::Kind::kNone || !s.state_periods.empty();
}

/// Whether parameters, or a centre, are on servers.
bool has_servers(Strategy::Kind kind);

/// Whether ranks have models of their own from the beginning, which never become equal.
bool is_population(Strategy::Kind kind);

/// Names as in recipes, in the order of the enumerators.
const std::vector<std::string>& strategy_names();
const std::vector<std::string>& parameter_names();
const std::vector<std::string>& average_state_names();

/// The ranks on which a strategy runs; where there are servers the workers only.
struct Workers {
  std::vector<int> ranks_per_host = {1};
  /// Whether one copy per host is possible: the ranks of a host can read each other's memory, and
  /// the parameters are float32 or float64 and updated by Stormo's own rules.
  bool can_share = true;
};

/// Options of a step that do not depend on the strategy.
struct StepOptions {
  int micro_batches = 1;          ///< into which the local batch is divided
  int logical_shards = 0;         ///< > 0: of the global batch, see logical_shards()
  bool scale_loss = false;        ///< for gradients in float16
  bool clip = false;              ///< gradients are clipped by their norm
  bool commit = false;            ///< updates stand behind a commit, see commit_before_update()
  bool trust_ratios = false;      ///< the update rule needs norms of whole parameters
  int prefetch = 0;               ///< see Sharding
  bool recompute = false;         ///< see recompute()
  bool overlap_exchange = false;  ///< servers are behind connections, see overlap_exchange()
  std::int64_t bucket_bytes = 0;  ///< > 0: buckets of replicas, see bucket()
  ReductionForm reduction = {};   ///< see reduce_with()
};

/// What plan_for() refuses whatever the model is, with kInvalidArgument.
Status check_strategy(const Strategy& strategy, const Workers& workers,
                      const StepOptions& step = {});

/// What does not go with StepOptions::logical_shards, all of it; plan_for() refuses it, too.
Status check_logical_shards(const Strategy& strategy, const Workers& workers,
                            const StepOptions& step);

/// The plan of one training step. On one rank every strategy without servers is one_device.
/// kInvalidArgument says why the strategy cannot be used, and suggests another.
Result<plan::StepPlan> plan_for(const Strategy& strategy, plan::ModelShape model,
                                const Workers& workers, const StepOptions& step = {});

}  // namespace stormo::parallel
