#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/server/message/run_terms.h>
#include <stormo/server/message/server_message.h>
#include <stormo/server/process/primary_monitor.h>
#include <stormo/server/replica/replica.h>
#include <stormo/transport/net/secret.h>

namespace stormo::server {

/// The parts of a run that one server holds: its own, and with backups a copy of its predecessor's.
/// And what it knows of its neighbours. For one thread.
class HostedPartitions {
 public:
  /// As the first worker says. kInvalidArgument for impossible numbers; kIo without memory.
  static Result<std::unique_ptr<HostedPartitions>> create(const WorkerHello& first);
  ~HostedPartitions();
  /// kMismatch for a worker that takes the server for another one.
  Status check(const WorkerHello& hello) const;

  int workers() const { return first_.workers; }
  bool has_backups() const { return first_.backups; }
  /// Empty before create_shards().
  const std::optional<RunTerms>& terms() const { return own_->run().terms(); }
  /// Memory for workers to map; with backups only its size.
  SharedFile ledger_file() const;
  std::vector<SharedFile> shard_files() const;

  /// See HostedRun.
  std::uint64_t needed_bytes(const RunTerms& terms) const;
  /// Creates the shards, with all values 0. Once. With backups it also connects to the successor;
  /// `timeout`: the silence after which neighbours count as lost.
  Status create_shards(const RunTerms& terms, const transport::Secret& secret, Duration timeout);
  /// Null when it is not here.
  Replica* part(int number);
  /// Its own first.
  std::vector<Replica*> all();
  /// Requests fail from now on, also those that wait.
  void close();

  /// Whether it is the number of the predecessor, which introduces itself as a worker.
  bool is_predecessor(int worker) const;
  PrimaryMonitor& predecessor() { return *predecessor_; }

  /// What is to be told with an answer to a beat.
  ServerNews news() const;
  /// The chief's verdicts. The lines say what changes. kPeerLost when this server counts as lost.
  /// kCorrupt for impossible numbers.
  Result<std::vector<std::string>> take(const ServerNews& news);
  /// Why this server cannot go on: it counts as lost, or its copy is not equal to the original.
  Status failure() const;

 private:
  explicit HostedPartitions(WorkerHello first) : first_(std::move(first)) {}
  bool is_lost(int server) const;

  const WorkerHello first_;
  std::unique_ptr<Replica> own_, copy_;  // copy_: with backups
  std::optional<PrimaryMonitor> predecessor_;
  std::vector<std::int32_t> lost_;
  Status failure_;
};

}  // namespace stormo::server
