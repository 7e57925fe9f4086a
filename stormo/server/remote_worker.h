#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/server/byte_ranges.h>
#include <stormo/server/data_message.h>
#include <stormo/server/hosted_run.h>
#include <stormo/server/shared_ledger.h>
#include <stormo/server/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/net/socket.h>

namespace stormo::server {

/// At a server: a worker that does not map the server's memory. A thread executes what it sends, in
/// its name. A request that is repeated on a new connection is not executed twice. Functions are
/// for one thread, the server's.
class RemoteWorker {
 public:
  /// `run` is borrowed, and has its shards.
  RemoteWorker(HostedRun& run, int worker);
  ~RemoteWorker();

  /// The worker has a new connection. Replaces the one before. Does not block. `on_nonsense` is
  /// called, in another thread, when the worker broke the protocol and was cut off.
  void attach(transport::Descriptor socket, std::function<void(const Status&)> on_nonsense);
  /// Ends the connection. The thread ends soon: see is_running().
  void cut();
  bool is_running() const { return running_.load(std::memory_order_acquire) > 0; }
  /// The worker was lost and its copies are freed: what it read is not there any more. Only while
  /// it is not running.
  void forget();

 private:
  struct Answer {
    std::uint64_t id = 0;
    std::string frame;
    std::optional<Shard::View> view;     ///< of a read: its weights follow
    std::vector<std::byte> values = {};  ///< of an exchange: they follow
  };
  struct Connection {
    transport::Descriptor socket;
    std::atomic<bool> is_cut{false};
    std::function<void(const Status&)> on_nonsense;
  };
  void serve(std::shared_ptr<Connection> connection);
  Status serve_one(int fd);
  Result<DataRequest> receive_request(int fd);
  Status receive_payload(int fd, const DataRequest& request);
  Status send(int fd, const Answer& answer, std::uint32_t shard);
  Status send_saved(int fd, const DataRequest& request);
  /// Its result; an array that follows it goes to `answer`.
  Result<std::string> execute(const DataRequest& request, Answer& answer);
  Result<std::string> exchange(const DataRequest& request, Answer& answer);
  Result<std::string> push(const DataRequest& request);
  Status set(const DataRequest& request);
  Result<std::string> ask_ledger(const DataRequest& request);
  bool fits(const DataRequest& request) const;
  Status cancelled() const;

  SharedShard& shard(const DataRequest& request) { return *shards_[request.shard]; }

  std::vector<std::unique_ptr<SharedShard>> shards_;
  std::unique_ptr<SharedLedger> ledger_;    // null: another server has it
  std::vector<Answer> answers_;             // the last of each shard, then of the ledger
  transport::MemoryFile staging_;           // a payload that was received
  std::shared_ptr<Connection> connection_;  // the last one
  std::shared_ptr<Connection> serving_;     // of the thread that runs
  std::thread thread_;
  std::atomic<int> running_{0};  // threads; one waits for the end of the one before
};

}  // namespace stormo::server
