#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stormo/codec/codec.h>
#include <stormo/data/sharding.h>
#include <stormo/optim/options.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/server/shard_layout.h>

namespace stormo::server {
class WorkerSession;
}

namespace stormo::train {

using OptimizerOptions = optim::Options;
using parallel::Strategy;

/// How replicated gradients become one. But for kAdasum they are averaged, and results differ only
/// by the order of additions.
enum class Reducer : std::uint8_t {
  kAuto,          ///< the fastest, by size, ranks and hosts
  kRing,          ///< around all ranks
  kHierarchical,  ///< inside hosts, then between them
  kReduceToOne,   ///< on rank 0, which sends the result to all
  kAdasum,        ///< see codec::Adasum
};

struct GradientOptions {
  Reducer reducer = Reducer::kAuto;
  std::int64_t bucket_bytes = 0;  ///< size of a bucket; 0: chosen by measurement
  bool overlap = true;            ///< reduce during backward where that is faster; else at its end
  Codec codec = Codec::kNone;     ///< of gradients on their way between ranks
  /// Use one fixed order of additions: bits depend only on the ranks and hosts, not on buckets,
  /// timing or measurements. Only with Reducer::kAuto, since the others have an order of their own.
  bool deterministic = false;
};

struct LearningRateOptions {
  enum class Kind { kConstant, kCosine, kStep } kind = Kind::kConstant;
  std::int64_t warmup_steps = 0;  ///< linear from 0 to the peak
  double min_lr = 0;              ///< kCosine: the rate at the end
  std::int64_t step_size = 0;     ///< kStep: the rate is reduced every so many steps
  double gamma = 0.1;             ///< kStep: factor of each reduction
  std::int64_t base_batch = 0;    ///< global batch for which the rate was chosen; 0: the run's own
};

struct CheckpointOptions {
  std::string directory;     ///< empty: none is written
  std::int64_t every = 0;    ///< steps; 0: only at the end and when interrupted
  int keep = 2;              ///< number of newest checkpoints to keep
  bool asynchronous = true;  ///< write those of `every` while training continues
  int max_failures = 3;      ///< failed saves in a row that end the run
  /// Also keeps the best one, besides `keep`, by "loss" or "accuracy" of the split "validation"; or
  /// "none".
  std::string best = "none";
};

/// What a run does on SIGUSR1. Schedulers send it before their time limit ends.
enum class OnUsr1 : std::uint8_t {
  kSaveAndExit,  ///< as SIGTERM
  kSave,         ///< save, and continue
  kIgnore,
};

/// How the loss is scaled in float16; see GradScaler.
struct GradScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;     ///< after growth_interval good steps in a row; > 1
  double backoff_factor = 0.5;  ///< after a step that overflowed; between 0 and 1
  std::int64_t growth_interval = 2000;
};

/// For Strategy::Kind::kParameterAveraging.
struct AveragingOptions {
  std::int64_t warmup_steps = 0;  ///< first steps, after each of which parameters are averaged
  /// > 0: the period of the strategy is the longest one. It becomes shorter and longer so that the
  /// consensus distance at an average, sqrt(mean over ranks of |w_r - mean w|^2), stays near or
  /// below this.
  double max_distance = 0;
  /// > 0: likewise, so that averages come about so many seconds after each other.
  double period_seconds = 0;
  bool adapts() const { return max_distance > 0 || period_seconds > 0; }
};

/// For Strategy::Kind::kCodistillation.
struct DistillationOptions {
  double weight = 1;         ///< of the cross entropy with what others predict, in the loss
  double temperature = 1;    ///< by which all logits are divided for it
  std::int64_t burn_in = 0;  ///< first steps, without it
};

/// For Strategy::Kind::kElasticAveraging.
struct ElasticOptions {
  /// Share of the distance by which a worker's values and the centre move in an exchange, at most
  /// 1 / workers; 0: not at all; -1: 0.9 / workers.
  double moving_rate = -1;
};

/// Parameter servers, for Strategy::Kind::kParameterServer.
struct ServerOptions {
  protocol::PolicyOptions policy = {};
  int count = 0;  ///< server shards; 0: one for each worker, at most one for each parameter
  /// > 0: so many processes hold the shards, and the workers are no ranks of one group. A worker
  /// that is lost is then no failure of the run.
  int processes = 0;
  bool backups = false;          ///< see server::WorkerSession::Options
  double worker_timeout_s = 10;  ///< a worker that is silent for longer counts as lost
  server::PlacementRule placement = server::PlacementRule::kGreedy;
  server::ShardUpdates updates = server::ShardUpdates::kVersions;
};

struct TrainerOptions {
  std::string name = "program";           ///< appears in records and manifests
  std::string recipe_json = "{}";         ///< resolved recipe; the Trainer copies it into Snapshots
  std::string preprocessing_json = "{}";  ///< the same, of its data; see Preprocessing
  Strategy strategy;
  /// A program's own passes, applied to the plan of the strategy; equal on all ranks. The resulting
  /// plan must pass analysis::verify (analysis/verify/step_verify.h), and is executed.
  std::vector<parallel::Pass> passes = {};
  GradientOptions gradients;
  ServerOptions servers;
  AveragingOptions averaging;
  DistillationOptions distillation;
  ElasticOptions elastic;
  /// For elastic training (docs/elastic.md): see parallel::commit_before_update().
  bool commits = false;
  std::int64_t micro_batches = 1;  ///< into which the local batch is divided
  /// Shards of the global batch, whose sums have the same bits on any number of ranks up to that;
  /// 0: the bits depend on the ranks. See parallel::logical_shards().
  std::int64_t logical_shards = 0;
  bool recompute = false;         ///< see parallel::recompute(); for a model::Chain
  std::int64_t steps = 0;         ///< steps of the whole run; or
  std::int64_t epochs = 0;        ///< whole epochs, used when steps == 0
  std::int64_t global_batch = 0;  ///< samples per step over all ranks
  std::uint64_t seed = 1;
  data::Sharding sharding = data::Sharding::kShuffled;
  bool balance_by_speed = false;  ///< with servers.processes: fast workers do more steps
  int data_threads = 1;           ///< threads of each rank that load batches ahead
  std::int64_t log_every = 10;
  std::int64_t eval_every = 0;   ///< steps; 0: only at the end
  std::int64_t patience = 0;     ///< evaluations without improvement that end the run; 0: never
  double clip_norm = 0;          ///< global norm of the averaged gradient; 0: off
  GradScalerOptions loss_scale;  ///< used when the task computes in float16
  bool resume = false;           ///< continue from the newest complete checkpoint of the directory
  /// Of this worker, with servers.processes > 0; else null.
  std::shared_ptr<server::WorkerSession> session;
  std::string record;      ///< folder for the order of all reads and pushes; empty: none
  bool overwrite = false;  ///< start a new run although the directory has checkpoints
  std::int64_t verify_every =
      0;  ///< steps between bitwise comparisons of replicas; 0: at the end only
  OptimizerOptions optimizer;
  LearningRateOptions learning_rate;
  CheckpointOptions checkpoint;
  OnUsr1 on_usr1 = OnUsr1::kSaveAndExit;
};

}  // namespace stormo::train
