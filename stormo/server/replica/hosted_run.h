#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/server/ledger/shared_ledger.h>
#include <stormo/server/message/run_terms.h>
#include <stormo/server/message/server_message.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {

/// The memory of a run at one of its servers: its shards, and at server 0 the ledger. Without
/// connections. Not thread-safe, but the objects that it makes for a worker may be used in another
/// thread.
class HostedRun {
 public:
  /// Shard s lies on server s % servers. kIo without memory.
  static Result<std::unique_ptr<HostedRun>> create(int workers, int server, int servers);

  int workers() const { return workers_; }
  int server() const { return server_; }
  int servers() const { return servers_; }
  /// The number of the coordinator, see SharedShard. It uses the ledger as worker 0.
  int coordinator() const { return workers_ + 1; }

  /// Bytes of memory that the shards of `terms` here use at least, once the run is under way.
  std::uint64_t needed_bytes(const RunTerms& terms) const;
  /// Creates the shards, with all values 0. Once.
  Status create_shards(const RunTerms& terms);
  /// Empty before create_shards().
  const std::optional<RunTerms>& terms() const { return terms_; }

  SharedFile ledger_file() const;
  std::vector<SharedFile> shard_files() const;

  /// Others do not wait for the worker any more, and do its steps. Blocks at most until `by` for
  /// each shard; then kDeadlineExceeded, and it is to be called again.
  Status evict(int worker, Deadline by);
  /// The process of a worker has ended: its copies of shards are free.
  void release_copies(int worker);
  /// Objects to act in a worker's name: its shards here, and the ledger (null if another server has
  /// it). They borrow memory of the run.
  std::vector<std::unique_ptr<SharedShard>> shards_of(int worker, const ShardWait& wait) const;
  /// `status`: see SharedLedger.
  std::unique_ptr<SharedLedger> ledger_of(
      int worker, std::function<Status()> status = [] { return Status(); }) const;

  /// The worker is back. It joins the shards itself.
  void readmit(int worker);
  /// Whether others do its steps, as the ledger says.
  bool is_lost(int worker) const;

 private:
  HostedRun(int workers, int server, int servers)
      : workers_(workers), server_(server), servers_(servers) {}
  struct HostedShard {
    transport::MemoryFile memory;
    std::unique_ptr<SharedShard> shard;  // of the server itself
  };

  int workers_, server_, servers_;
  std::optional<transport::MemoryFile> ledger_;
  std::optional<RunTerms> terms_;
  ShardOptions options_;
  std::vector<HostedShard> shards_;
};

}  // namespace stormo::server
