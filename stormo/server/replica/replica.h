#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/server/chief_terms.h>
#include <stormo/server/link/data_link.h>
#include <stormo/server/link/server_link.h>
#include <stormo/server/replica/hosted_run.h>
#include <stormo/server/replica/request_executor.h>

namespace stormo::server {

/// One server's copy of a part of a run: shards, and in part 0 the ledger. Without backups it is
/// the only copy. With backups there are two, and workers do not map their memory:
///
/// - the primary executes requests of workers one after the other, sends each to the backup, and
///   answers it when the backup has executed it, too;
/// - the backup executes them in the same order in the names of the same workers, so the two copies
///   are equal to the bit, and has the same answers; it takes requests of workers when it is
///   promoted. Then a worker repeats what has no answer, and what was executed is not executed
///   again;
/// - the one that is left goes on alone.
///
/// Functions are for the server's thread, where nothing else is said.
class Replica {
 public:
  enum class Role {
    kOnly,     ///< a run without backups
    kPrimary,  ///< what it executes, its backup executes
    kBackup,
    kAlone,  ///< the other copy is lost
  };
  /// `part`: the number of the server that is its first primary. kIo without memory.
  static Result<std::unique_ptr<Replica>> create(int workers, int part, int servers, Role role);
  ~Replica();

  HostedRun& run() { return *run_; }
  int part() const { return run_->server(); }
  /// Any thread.
  Role role() const;

  /// Of a primary, before the first request: where its backup is. kIo without descriptors.
  Status connect_backup(ServerLink::Options backup);
  /// OK while a primary can reach its backup.
  Status backup_status() const;
  /// The other copy is lost. A backup has executed all that it has received.
  void go_on_alone();
  /// Requests fail from now on, also those that wait.
  void close();

  /// The worker is lost: see HostedRun. What it read is still there. A backup does nothing.
  Status evict(int worker, Deadline by);
  /// What the worker read is free: nobody answers its requests.
  void release_copies(int worker);
  /// The worker is back. A backup does nothing.
  void readmit(int worker);

  /// Begins to tell the backup who is the next chief, in the order of requests.
  void begin_election(const protocol::ChiefTerm& next);
  /// Nothing until the backup has answered that. OK when it knows, or there is none; a failure when
  /// it is lost.
  std::optional<Status> election_outcome();
  /// At a backup: the last one that its primary has told.
  protocol::ChiefTerm told_chief() const;

  /// In whose name requests are executed. Any thread; the object is for one thread at a time.
  RequestExecutor& executor_of(int worker);
  /// Blocks until this copy takes requests of workers, at most until `by`. kPeerLost when it is
  /// another's turn. Any thread.
  Status wait_to_serve(Deadline by, const std::function<Status()>& status);
  /// Answers a request that fits, in the name of a worker: executes it, unless it was executed
  /// before. The answer lies in `answer`, or where it is kept until the worker's next request.
  /// `payload` is borrowed. `patience`: until this copy takes requests. `status`: a failure ends
  /// waits. Any thread. kCancelled when nobody knows whether it is executed.
  Result<RequestExecutor::Answer*> answer(RequestExecutor& in_name, const DataRequest& request,
                                          const Payload& payload, Duration patience,
                                          std::function<Status()> status,
                                          RequestExecutor::Answer& answer);
  /// Of a run with backups: executes in the order of all requests, and blocks until the backup has
  /// executed it, too.
  Result<std::string> execute(RequestExecutor& in_name, const DataRequest& request,
                              const Payload& payload, RequestExecutor::Answer& answer);
  /// At a backup: executes what the primary has executed. kCorrupt when the result is another.
  /// Any thread.
  Status follow(const DataRequest& request, const Payload& payload);
  /// Why the copies are not equal any more. Any thread.
  Status failure() const;

 private:
  explicit Replica(Role role) : role_(role) {}
  std::shared_ptr<DataCall> forward(DataRequest request, const Payload& payload);
  Result<std::string> execute_in_order(RequestExecutor& in_name, const DataRequest& request,
                                       const Payload& payload, RequestExecutor::Answer& answer,
                                       std::shared_ptr<DataCall>& copied);
  bool is_closed() const;
  Status wait_for_copy(const std::shared_ptr<DataCall>& copied);
  Status follow_in_order(const DataRequest& request, const Payload& payload);

  std::unique_ptr<HostedRun> run_;
  std::shared_ptr<ServerLink> link_;
  std::unique_ptr<DataLink> backup_;

  std::shared_ptr<DataCall> election_;  // null: there is nobody to tell

  std::mutex order_;            // requests are executed and sent under it
  std::uint64_t followed_ = 0;  // id of the last request of the primary; guarded by order_

  mutable std::mutex mutex_;  // taken after order_; guards what follows
  std::condition_variable changed_;
  Role role_;
  bool is_closed_ = false;
  protocol::ChiefTerm told_chief_;
  std::vector<std::unique_ptr<RequestExecutor>> executors_;  // by worker; the last: coordinator
  Status failure_;
};

}  // namespace stormo::server
