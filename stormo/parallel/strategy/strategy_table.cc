#include <stormo/parallel/strategy/strategy_table.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include <stormo/base/requirements.h>
#include <stormo/base/text.h>
#include <stormo/parallel/computation/by_segment.h>
#include <stormo/parallel/inside_layers/vertical.h>
#include <stormo/parallel/pipeline/pipeline_schedule.h>
#include <stormo/parallel/replicas/host_shared.h>
#include <stormo/parallel/replicas/local_averages.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/replicas/mix.h>
#include <stormo/parallel/replicas/outer_update.h>
#include <stormo/parallel/replicas/pairs.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/replicas/population.h>
#include <stormo/parallel/replicas/state_periods.h>
#include <stormo/parallel/replicas/streaming.h>
#include <stormo/parallel/replicas/worker_ranks.h>
#include <stormo/parallel/servers/elastic_averaging.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/mixing/mixing.h>

namespace stormo::parallel {
namespace {

using Kind = Strategy::Kind;
using Parameters = Strategy::Parameters;
using Passes = std::vector<Pass>;

bool overlaps_steps(const Strategy& s) {
  const Result<PipelineSchedule> schedule = pipeline_schedule(s.schedule);
  return schedule.ok() && schedule->overlap;
}

// Sharing costs nothing inside a host, and saves memory. Between hosts alone there is nothing to
// share.
bool may_share(const Strategy& s, const Job& job) {
  return s.parameters == Parameters::kAuto && ranks_of_replica(s) == 1 && job.workers.can_share &&
         job.uniform() && job.local() > 1;
}

void share(Passes& passes, const Strategy&, const Job& job, int) {
  passes.push_back(host_shared(job.hosts(), job.local()));
}

void replicate(Passes& passes, const Strategy& s, const Job& job, int copies) {
  if (s.parameters == Parameters::kHostShared) return share(passes, s, job, copies);
  passes.push_back(mirrored(copies));
}

void replicate_or_share(Passes& passes, const Strategy& s, const Job& job, int copies) {
  (may_share(s, job) ? &share : &replicate)(passes, s, job, copies);
}

// Plain fsdp shards over all hosts, which needs less memory than a copy per host.
void shard(Passes& passes, const Strategy& s, const Job& job, int copies) {
  const bool shares = may_share(s, job) && (job.hosts() == 1 || s.hybrid);
  if (shares || s.parameters == Parameters::kHostShared) return share(passes, s, job, copies);
  const bool hybrid = s.hybrid && job.hosts() > 1;
  if (hybrid) passes.push_back(mirrored(job.hosts()));
  passes.push_back(sharded({.stage = s.stage,
                            .ranks = hybrid ? copies / job.hosts() : copies,
                            .prefetch = job.step.prefetch}));
}

void average(Passes& passes, const Strategy& s, const Job& job, int copies) {
  if (s.worker_ranks > 1) passes.push_back(worker_ranks(s.worker_ranks));
  // the ranks of the only host are all ranks
  const int period = s.local_period > 0 && job.hosts() == 1 ? s.local_period : s.period;
  passes.push_back(parameter_averaging(copies / s.worker_ranks, period, averages_state(s)));
  if (s.local_period > 0 && job.hosts() > 1 && job.local() > 1) {
    passes.push_back(local_averages(job.local(), s.local_period));
  }
  if (!s.state_periods.empty()) passes.push_back(state_periods(s.state_periods));
  if (s.outer.kind != OuterOptimizer::Kind::kNone) passes.push_back(outer_update());
  if (streams(s.streaming)) passes.push_back(streaming(s.streaming));
}

void mix_with_neighbours(Passes& passes, const Strategy& s, const Job&, int copies) {
  if (s.topology == kPairs) return passes.push_back(pairs(copies));
  passes.push_back(parameter_averaging(copies, s.period, /*state=*/false));
  passes.push_back(gossip({.topology = s.topology, .tracks_gradients = s.gradient_tracking}));
}

void play_tournaments(Passes& passes, const Strategy& s, const Job&, int copies) {
  passes.push_back(parameter_averaging(copies, s.period));
  passes.push_back(tournament(s.topology));
}

void learn_from_others(Passes& passes, const Strategy& s, const Job&, int copies) {
  passes.push_back(parameter_averaging(copies, s.period));
  passes.push_back(codistillation(s.topology));
}

void draw_to_centre(Passes& passes, const Strategy& s, const Job&, int copies) {
  passes.push_back(elastic_averaging(copies, s.period));
}

void serve(Passes& passes, const Strategy& s, const Job& job, int copies) {
  passes.push_back(parameter_server(copies, s.exchange_periods, s.worker_ranks));
  if (!job.step.overlap_exchange || !s.exchange_periods.every_step() || ranks_of_worker(s) > 1)
    return;
  passes.push_back(by_segment());
  passes.push_back(overlap_exchange());
}

void cut_columns(Passes& passes, const Strategy& s, const Job& job, int) {
  passes.push_back(
      vertical({.ranks = job.ranks(), .labels = s.labels, .columns = s.column_counts}));
}

Status check_one_device(const Strategy& s, const Job& job) {
  if (job.ranks() == 1) return {};
  return refuse(s, "trains on one rank, the job has " + std::to_string(job.ranks()) +
                       "; use 'ddp', or start one rank");
}

Status check_shards(const Strategy& s, const Job& job) {
  if (job.sparse) {
    return refuse(s, "cannot cut gradients that are sparse; use 'ddp', or dense gradients");
  }
  if (s.stage < 1 || s.stage > 3) {
    return refuse(s, "has stages 1 to 3, not " + std::to_string(s.stage));
  }
  if (!s.hybrid || job.uniform() || s.parameters == Parameters::kHostShared) return {};
  return refuse(s, "needs as many ranks on one host as on the others; or leave out hybrid");
}

/// Workers of several ranks.
Status check_workers(const Strategy& s, const Job& job) {
  if (s.worker_ranks < 1 || s.worker_ranks > plan::kMaxRanks) {
    return refuse(s, "has workers of at least 1 rank, not " + std::to_string(s.worker_ranks));
  }
  if (job.ranks() % s.worker_ranks == 0) return {};
  return refuse(s, "has workers of " + std::to_string(s.worker_ranks) + " ranks (worker_ranks), " +
                       "and " + std::to_string(job.ranks()) +
                       " ranks are no multiple of that; start others, or change worker_ranks");
}

constexpr const char* kOneRankForAPart =
    "has a rank for each part of a worker: leave out worker_ranks, or pipeline and tensor";

Status check_columns(const Strategy& s, const Job& job) {
  if (job.step.bucket_bytes == 0) return {};
  return refuse(s, "averages no gradients; leave out bucket_bytes");
}

/// Averages of the ranks of a host.
void check_local_period(const Strategy& s, const Job& job, Requirements& require) {
  if (s.local_period == 0) return;
  require(s.local_period > 0 && s.period % s.local_period == 0,
          "averages all ranks in some of the steps in which those of a host average: give a "
          "local_period that divides period " +
              std::to_string(s.period) + ", not " + std::to_string(s.local_period));
  require(job.uniform(),
          "averages the ranks of a host by themselves, as many on each: leave out "
          "local_period, or start as many on one host as on the others");
  const bool is_plain = s.outer == OuterOptimizer{} && s.state_periods.empty() &&
                        !streams(s.streaming) && job.step.reduction.codec == Codec::kNone;
  require(
      is_plain && s.worker_ranks == 1 && ranks_of_replica(s) == 1,
      "averages the ranks of a host where each is a replica, and takes the averages as they "
      "are: leave out local_period, or outer, state_periods, worker_ranks, pipeline and tensor");
}

Status check_averages(const Strategy& s, const Job& job) {
  const bool has_outer = s.outer.kind != OuterOptimizer::Kind::kNone;
  const bool is_streamed = streams(s.streaming),
             is_coded = job.step.reduction.codec != Codec::kNone;
  Requirements require;
  const std::string wrong = wrong_with(s.outer);
  require(wrong.empty(), wrong);
  STORMO_RETURN_IF_ERROR(check_workers(s, job));
  const std::string uneven = s.period < 1 ? "" : wrong_with(s.streaming, s.period);
  require(uneven.empty(), uneven);
  require(has_outer || !is_streamed,
          "averages all parameters at once without an outer optimizer: leave out fragments, delay "
          "and mixing, or choose outer=nesterov");
  require(has_outer || !is_coded,
          "sends parameters, which a codec would change, without an outer optimizer: leave out "
          "compression, or choose outer=nesterov");
  require(s.worker_ranks == 1 || ranks_of_replica(s) == 1, kOneRankForAPart);
  check_local_period(s, job, require);
  const std::string apart = s.period < 1 ? "" : wrong_with_state_periods(s.state_periods, s.period);
  require(apart.empty(), apart);
  require(s.state_periods.empty() || averages_state(s),
          "has no periods of state that it does not average: leave out state_periods, or "
          "average_state");
  require(!averages_state(s) || !(is_streamed || is_coded) || !has_outer,
          "averages the optimizer's state with all parameters at once, as it is: leave out "
          "average_state and state_periods, or fragments, delay and compression");
  require(!row_of(job.step.reduction.codec).encodes() || ranks_of_replica(s) == 1,
          "encodes outer gradients of whole replicas: leave out pipeline and tensor, or take "
          "compression=bfloat16");
  require(!row_of(job.step.reduction.codec).has_factors(),
          "encodes outer gradients of all parameters as one list, and codec powersgd is of "
          "matrices: take another compression");
  return require.wrong().empty() ? Status() : refuse(s, require.wrong());
}

/// Gossip without steps in common.
Status check_pairs(const Strategy& s) {
  Requirements require;
  require(!s.gradient_tracking,
          "tracks gradients of steps that all ranks do, and with topology=pairs there are none: "
          "leave out gradient_tracking, or choose another topology");
  require(ranks_of_replica(s) == 1,
          "mixes whole replicas with topology=pairs: leave out pipeline and tensor, or choose "
          "another topology");
  return require.wrong().empty() ? Status() : refuse(s, require.wrong());
}

Status check_gossip(const Strategy& s, const Job& job) {
  if (s.topology == kPairs) return check_pairs(s);
  Requirements require;
  require(!s.gradient_tracking || !job.step.clip,
          "tracks gradients as they are: leave out train.clip_norm or gradient_tracking");
  require(!s.gradient_tracking || !job.sparse,
          "tracks dense gradients: leave out gradient_tracking, or what makes them sparse");
  STORMO_RETURN_IF_ERROR(check_workers(s, job));
  const std::int64_t replica = ranks_of_replica(s);
  if (replica > 0 && job.ranks() % replica == 0) {
    const auto copies = static_cast<int>(job.ranks() / replica);
    const Status known = plan::mixing_of(s.topology, copies).status();
    require(known.ok(), "mixes by " + known.message());
  }
  return require.wrong().empty() ? Status() : refuse(s, require.wrong());
}

Status check_population(const Strategy& s, const Job& job) {
  const Status known = plan::mixing_of(s.topology, job.ranks()).status();
  return known.ok() ? Status() : refuse(s, "has members that meet by " + known.message());
}

Status any_cut(const Strategy&, const Job&) { return {}; }

/// Several ranks, on each host where shards stay inside of hosts, have the same to shard.
Status check_copies(const Strategy& s, const Job& job) {
  const std::int64_t replica = ranks_of_replica(s);
  if (job.ranks() == replica) {
    return refuse(s, "has nothing to shard: all " + std::to_string(replica) +
                         " ranks compute one replica (pipeline " + std::to_string(s.pipeline) +
                         ", tensor " + std::to_string(s.tensor) + ", context " +
                         std::to_string(s.context) +
                         "), and each has another part of it or other positions; use 'ddp', or "
                         "start more ranks");
  }
  if (job.ranks() % replica != 0 || !s.hybrid || job.hosts() == 1) return {};
  if (job.local() % replica == 0 && job.local() > replica) return {};
  return refuse(s, "shards over the ranks of a host (hybrid), and " + std::to_string(job.local()) +
                       " ranks of a host are not several times the " + std::to_string(replica) +
                       " that compute a replica; leave out hybrid");
}

/// Replicas that are cut, and whose parts are averaged now and then. Copies of what several ranks
/// have stay equal: so the averages of all parts are added up in the same order.
Status check_averaged_parts(const Strategy& s, const Job& job) {
  Requirements require;
  require(s.context == 1,
          "averages no gradients, which ranks with parts of the positions have to: leave out "
          "context, or use 'ddp'");
  require(s.pipeline == 1 || !overlaps_steps(s),
          "averages after whole steps, and those of schedule '" + s.schedule +
              "' overlap: leave out schedule, or use 'ddp'");
  const std::int64_t replica = ranks_of_replica(s);
  const bool alike = std::ranges::all_of(job.workers.ranks_per_host, [&](std::int64_t here) {
    return here % replica == 0 || (here == job.local() && replica % here == 0);
  });
  require(job.hosts() == 1 || alike,
          "has replicas of " + std::to_string(replica) +
              " ranks that lie on hosts in different ways, so that copies of one part "
              "would be added up in different orders: start a multiple of " +
              std::to_string(replica) + " ranks on each host");
  return require.wrong().empty() ? Status() : refuse(s, require.wrong());
}

/// Workers of servers that are cut, and whose parts have servers of their own.
Status check_served_parts(const Strategy& s, const Job& job) {
  Requirements require;
  require(s.context == 1,
          "cuts workers into stages and slices only: leave out context, or use 'ddp'");
  require(s.worker_ranks == 1, kOneRankForAPart);
  require(s.tensor == 1 || !job.step.trust_ratios,
          "has servers with slices, which do not know the norms of whole parameters: leave out "
          "tensor, or take an optimizer other than lars and lamb");
  require(!overlaps_steps(s), "pushes after whole steps, and those of schedule '" + s.schedule +
                                  "' overlap: leave out schedule, or use 'ddp'");
  require(s.exchange_periods.averages || s.exchange_periods.every_step(),
          "has parts of workers that pull and push in every step: leave out fetch_every and "
          "push_every, or pipeline and tensor");
  require(!s.exchange_periods.averages,
          "has servers that average workers of one rank: leave out pipeline and tensor, or use "
          "'parameter_averaging'");
  return require.wrong().empty() ? Status() : refuse(s, require.wrong());
}

using Distribute = decltype(StrategyRow::distribute);

/// Keys of replicas, or workers, that are cut.
constexpr std::string_view kKeysOfCuts =
    " pipeline tensor sequence_parallel context attention schedule chunks cut weight_stashing";

/// Keys of averages of parameters.
constexpr std::string_view kKeysOfAverages =
    "worker_ranks period local_period warmup_steps max_distance period_seconds outer outer_lr "
    "outer_momentum average_state state_periods fragments delay mixing compression density";

/// Every rank, or replica, has the same gradients.
StrategyRow replicas(Kind kind, std::string_view name, std::string_view ranks, Distribute how) {
  return {.kind = kind,
          .name = name,
          .ranks = ranks,
          .keys =
              "overlap compression density momentum_correction warmup_steps matrix_rank "
              "deterministic",
          .all_reduces = true,
          .parameters = {Parameters::kReplicated, Parameters::kHostShared},
          .check_cut = any_cut,
          .cuts_images = true,
          .distribute = how};
}

/// Every rank is a member.
StrategyRow population(Kind kind, std::string_view name, std::string keys, Distribute how) {
  return {.kind = kind,
          .name = name,
          .ranks = "on any hosts",
          .keys = std::move(keys),
          .trains_as_one = false,
          .is_population = true,
          .other_parameters = "has parameters on every rank; leave out parameters, or use 'ddp'",
          .check = check_population,
          .distribute = how};
}

/// One model, on every rank or sharded over ranks.
std::vector<StrategyRow> rows_of_one_model() {
  StrategyRow mirrored = replicas(Kind::kMirrored, "mirrored", "on one host", replicate);
  mirrored.one_host = true;
  return {
      {.kind = Kind::kOneDevice,
       .name = "one_device",
       .ranks = "one",
       .keys = "compression density momentum_correction warmup_steps matrix_rank deterministic",
       .all_reduces = true,
       .parameters = mirrored.parameters,
       .check = check_one_device,
       .distribute = replicate},
      mirrored,
      replicas(Kind::kMultiWorkerMirrored, "multi_worker_mirrored", "on any hosts", replicate),
      {.kind = Kind::kCentralStorage,
       .name = "central_storage",
       .ranks = "on one host",
       .keys = "compression density matrix_rank deterministic",
       .one_host = true,
       .parameters = {Parameters::kHostShared},
       .other_parameters =
           "has one copy of the parameters; leave out parameters, or use 'mirrored'",
       .distribute = share},
      replicas(Kind::kDdp, "ddp", "on any hosts", replicate_or_share),
      {.kind = Kind::kFsdp,
       .name = "fsdp",
       .ranks = "on any hosts",
       .keys = "stage hybrid overlap compression density deterministic",
       .parameters = {Parameters::kHostShared, Parameters::kSharded},
       .other_parameters = "does not replicate parameters; leave out parameters, or use 'ddp'",
       .check = check_shards,
       .check_cut = check_copies,
       .distribute = shard},
  };
}

/// Workers with models of their own.
std::vector<StrategyRow> rows_of_workers() {
  using Servers = StrategyRow::Servers;
  return {
      {.kind = Kind::kParameterServer,
       .name = "parameter_server",
       .ranks = "workers on one host; on any with `strategy.server_processes`",
       .keys = "overlap compression density matrix_rank worker_ranks fetch_every push_every period "
               "policy bound n portions backups warm_start compensation lambda lambda_decay "
               "servers server_processes server_backups worker_timeout placement updates",
       .trains_as_one = false,
       .servers = Servers::kParameters,
       .other_parameters = "has the parameters on servers; leave out parameters, or use 'ddp'",
       .check = check_workers,
       .check_cut = check_served_parts,
       .distribute = serve},
      {.kind = Kind::kParameterAveraging,
       .name = "parameter_averaging",
       .ranks = "on any hosts",
       .keys = std::string(kKeysOfAverages),
       .trains_as_one = false,
       .other_parameters = "has parameters on every rank; leave out parameters, or use 'ddp'",
       .check = check_averages,
       .check_cut = check_averaged_parts,
       .distribute = average},
      {.kind = Kind::kGossip,
       .name = "gossip",
       .ranks = "on any hosts",
       .keys = "period topology gradient_tracking",
       .trains_as_one = false,
       .other_parameters = "has parameters on every rank; leave out parameters, or use 'ddp'",
       .check = check_gossip,
       .check_cut = check_averaged_parts,
       .distribute = mix_with_neighbours},
      population(Kind::kTournament, "tournament", "period topology", play_tournaments),
      population(Kind::kCodistillation, "codistillation",
                 "period topology distillation temperature burn_in", learn_from_others),
      {.kind = Kind::kElasticAveraging,
       .name = "elastic_averaging",
       .ranks = "as `parameter_server`",
       .keys = "period moving_rate servers server_processes server_backups worker_timeout "
               "placement",
       .trains_as_one = false,
       .servers = Servers::kCentre,
       .other_parameters = "has parameters on every rank; leave out parameters, or use 'ddp'",
       .distribute = draw_to_centre},
  };
}

/// Parts of a model, and what chooses.
std::vector<StrategyRow> other_rows() {
  return {
      {.kind = Kind::kVertical,
       .name = "vertical",
       .ranks = "on any hosts",
       .keys = "labels column_counts",
       .other_parameters = "has a part of the first layer on each rank; leave out parameters",
       .check = check_columns,
       .distribute = cut_columns},
      {.kind = Kind::kAuto,
       .name = "auto",
       .ranks = "on any hosts",
       // of what it chooses from
       .keys = "stage hybrid overlap compression density matrix_rank deterministic",
       .all_reduces = true,
       .check_cut = any_cut,
       .cuts_images = true},
  };
}

}  // namespace

int Job::ranks() const {
  return std::accumulate(workers.ranks_per_host.begin(), workers.ranks_per_host.end(), 0);
}

bool Job::uniform() const { return std::ranges::count(workers.ranks_per_host, local()) == hosts(); }

bool StrategyRow::has_key(std::string_view key) const {
  return std::ranges::count(split(keys, ' '), key) > 0;
}

std::span<const StrategyRow> strategy_rows() {
  static const std::vector<StrategyRow> rows = [] {
    std::vector<StrategyRow> all = rows_of_one_model();
    for (const auto some : {rows_of_workers, other_rows}) {
      std::ranges::move(some(), std::back_inserter(all));
    }
    for (StrategyRow& row : all) {
      if (row.check_cut != nullptr) row.keys += kKeysOfCuts;
      if (row.cuts_images) row.keys += " spatial";
      if (row.all_reduces) row.keys += " reducer bucket_bytes";
    }
    return all;
  }();
  return rows;
}

const StrategyRow& row_of(Strategy::Kind kind) {
  return strategy_rows()[static_cast<std::size_t>(kind)];
}

std::vector<std::string_view> strategies_with(std::string_view key) {
  std::vector<std::string_view> out;
  for (const StrategyRow& row : strategy_rows()) {
    if (row.distribute != nullptr && row.has_key(key)) out.push_back(row.name);
  }
  return out;
}

bool uses_key(const Strategy& strategy, std::string_view key) {
  const StrategyRow& row = row_of(strategy.kind);
  return row.has_key(key) ||
         (key == "period" && row.check_cut != nullptr && overlaps_steps(strategy));
}

Status refuse(const Strategy& strategy, const std::string& why) {
  return invalid_argument("strategy '" + std::string(row_of(strategy.kind).name) + "' " + why);
}

}  // namespace stormo::parallel
