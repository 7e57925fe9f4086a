#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/server/coordinator/coordinator.h>
#include <stormo/server/ledger.h>
#include <stormo/server/message/run_terms.h>
#include <stormo/server/shard.h>
#include <stormo/server/worker/worker_pulse.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::server {

/// A worker's connection to the servers of a run, see ShardServer. A thread of it for each server
/// says that the worker lives, so that a worker that computes is not taken for lost. Other
/// functions are for one thread. Shards and ledger keep working when the session object is gone.
///
/// With backups, once the run is open, the loss of a server only delays calls: they are repeated at
/// the server that has the copy, and each is executed once. Calls fail with kPeerLost when both
/// servers of a shard are lost. The chief's session decides which servers are lost. When the chief
/// is lost, once the run is open, another worker becomes the chief; a chief that lives, but was
/// taken for lost, finds that all its calls fail with kPeerLost.
class WorkerSession {
 public:
  struct Options {
    std::vector<transport::HostPort> servers;  ///< shard s lies on server s % servers.size()
    transport::Secret secret;                  ///< may be empty on both sides
    int worker = 0, workers = 1;
    /// The servers take the worker for lost when silent for longer.
    Duration timeout = std::chrono::seconds(10);
    /// Use memory of servers on this host. Else as if they were on another one: for measurements.
    bool share_memory = true;
    /// Server (s + 1) % servers.size() has a copy of all that server s holds, so that the run
    /// survives the loss of a server. Needs two servers. Workers send then, also on one host.
    bool backups = false;
    int hosts = 1;  ///< with workers or servers
    /// Gets a line when others are missing: "waits for ...". Called by a thread of the session, or
    /// in connect(). May be empty.
    std::function<void(const std::string&)> on_event = {};
  };
  /// Connects to all servers, which may start later, at most until `by`; with backups to all that
  /// are not lost. kMismatch when workers disagree about their number, the list of servers or
  /// backups; kDeadlineExceeded also when another process has the worker's number.
  static Result<std::shared_ptr<WorkerSession>> connect(Options options, Deadline by);
  virtual ~WorkerSession() = default;

  virtual int worker() const = 0;
  virtual int workers() const = 0;
  /// Whether this worker makes the run's shards and opens it: worker 0, unless it is a new process
  /// in a run that another worker keeps. Constant.
  virtual bool opens() const = 0;
  /// Whether this worker keeps the run. At first that is the one that opens it. With backups
  /// another one may become the chief at any time. Thread-safe.
  virtual bool is_chief() const = 0;
  /// Whether another worker may become the chief. Then nobody says goodbye before is_over().
  virtual bool may_change_chief() const = 0;
  /// With backups: the chief has finished the run.
  virtual bool is_over() const = 0;
  virtual int hosts() const = 0;

  /// The run's shards, in order. Who opens() the run creates them with all values 0, sets first
  /// values (Shard::set), deals the ledger, and then calls open(). Another worker blocks until
  /// then, at most until `by`. kMismatch when terms differ.
  virtual Result<std::vector<std::unique_ptr<Shard>>> shards(const RunTerms& terms,
                                                             Deadline by) = 0;
  virtual Status open() = 0;
  /// Who does which step. Other workers use it after shards().
  virtual Ledger& ledger() = 0;
  /// With the policy portions, of the chief, after shards(): a new object.
  virtual std::unique_ptr<Coordinator> coordinator() = 0;
  /// What the worker does, told to the servers with every beat. They take a worker for lost that
  /// does not get on while others wait, see ShardServer. Thread-safe.
  virtual WorkerPulse& pulse() = 0;
  /// The worker has left all shards and says goodbye: its end is no loss. The chief's goodbye ends
  /// the servers when the others have said theirs. With backups servers that are lost are left out.
  virtual Status finish() = 0;
  /// By the chief, in place of finish(): the run has failed, and going on would fail again. Servers
  /// end, and calls of other workers fail with kCancelled and this text.
  virtual void fail(const std::string& why) = 0;
};

}  // namespace stormo::server
