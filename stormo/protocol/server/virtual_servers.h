#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/protocol/server/shard_state.h>

namespace stormo::protocol {

/// Times of one step of a worker.
struct StepTime {
  Duration rest{};     ///< from the end of the step before, or the begin, to the read
  Duration compute{};  ///< from the read to the push
  bool operator==(const StepTime&) const = default;
};

/// Workers and servers in virtual time. All times are drawn from streams of `seed`, so equal values
/// give equal runs.
struct VirtualCluster {
  int workers = 2;
  int servers = 1;           ///< each has one shard
  std::int64_t steps = 100;  ///< of a worker
  /// The steps of all workers are in one pool: a worker that is free takes the next one. Else each
  /// worker has the same number.
  bool pooled = false;
  std::int64_t read_every = 1;  ///< steps
  std::int64_t push_every = 1;  ///< steps; the last gradients of a worker are always pushed
  /// Elastic averaging: nobody reads, and in the first of every `push_every` steps a worker
  /// exchanges with the servers. The policy is async.
  bool exchanges = false;
  Duration compute = std::chrono::milliseconds(10);  ///< of a step
  double jitter = 0.1;                ///< a step takes compute * (1 +- jitter), uniformly
  std::vector<double> slowness = {};  ///< by worker, multiplies its compute; missing: 1
  /// By worker and step, in place of `compute` and `jitter`; after the last one again from the
  /// first. Empty, or for every worker at least one.
  std::vector<std::vector<StepTime>> times = {};
  /// By worker: from its last push to its leaving; missing: 0.
  std::vector<Duration> leaves = {};
  Duration latency = std::chrono::microseconds(100);  ///< of a message, each way
  /// Probability that a message between a worker and a server is lost, below 1.
  double loss = 0;
  /// Where messages or servers may be lost: a worker sends a request again when it has no answer
  /// for so long.
  Duration timeout = std::chrono::milliseconds(100);
  std::uint64_t seed = 1;
  struct Crash {
    int worker = 0;
    Duration at{};
  };
  /// Workers that end without a word. Their leaving is noticed at once.
  std::vector<Crash> crashes = {};
  bool crash_ends_run = false;  ///< workers are ranks of one group
  struct ServerCrash {
    int server = 0;
    Duration at{};
  };
  /// Servers that are lost, for ever. With its backup the run goes on, else it ends.
  std::vector<ServerCrash> server_crashes = {};
  /// The successor of each server executes what it executes, before the worker gets its answer.
  bool backups = false;
};

/// What happens, in the order of virtual time. A run with data does its work in these calls. All
/// may be empty; a failure ends the run.
struct VirtualEvents {
  /// The worker has read the shard of a server. With backups: when the copy knows it, too.
  std::function<Status(int worker, int server)> read;
  /// The worker has computed a gradient from what it last read. `step` counts the steps that were
  /// begun, over all workers if they are pooled.
  std::function<Status(int worker, std::int64_t step, Duration now)> computed;
  /// The server has taken a push or exchange, or got it again (kRepeated); as `read`. Not kWait.
  std::function<Status(int server, const Push&, const PushDecision&)> pushed;
  /// The worker has left the server: it has done all steps, or has crashed. `updates`: with that
  /// the pending gradients make up an update.
  std::function<Status(int worker, int server, bool updates)> left;
  /// The worker's step is over, also what it had to exchange.
  std::function<Status(int worker)> step_ended = {};
  /// Asked after each of these: whether the run ends here.
  std::function<bool()> ends = {};
};

struct VirtualOutcome {
  Duration time{};        ///< until the last worker has ended, or the run
  std::string lost = {};  ///< "worker 3", "server 0": whose loss ended the run; empty: nobody's
  std::vector<ShardState> servers;
  std::vector<std::int64_t> steps;          ///< by worker
  std::vector<std::int64_t> reads, pushes;  ///< by worker: number of times
  std::vector<Duration> waited;             ///< by worker: for other workers, without latency
  std::int64_t events = 0;
};

/// Runs all workers to their end. `policy` is one that make_policy() accepts for these workers.
/// kCorrupt when an invariant of the policy is broken, or when it lets no worker go on for ever;
/// kInvalidArgument for an impossible cluster.
Result<VirtualOutcome> run_virtual(const VirtualCluster& cluster, const Policy& policy,
                                   const VirtualEvents& events = {});

}  // namespace stormo::protocol
