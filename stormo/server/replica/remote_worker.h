#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/server/message/data_message.h>
#include <stormo/server/replica/replica.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/net/socket.h>

namespace stormo::server {

/// At a server: a worker that does not map the server's memory, or the primary whose part this
/// server has a copy of. A thread executes what it sends. A request that is repeated on a new
/// connection is not executed twice. Functions are for one thread, the server's.
class RemoteWorker {
 public:
  /// For `worker` of the primary, which acts in the names of all workers.
  static constexpr int kPrimary = -1;

  /// `replica` is borrowed, and has its shards. `timeout`: how long a worker waits for a backup
  /// that is not promoted.
  RemoteWorker(Replica& replica, int worker, Duration timeout);
  ~RemoteWorker();

  /// It has a new connection. Replaces the one before. Does not block. `on_nonsense` is called, in
  /// another thread, when it broke the protocol and was cut off.
  void attach(transport::Channel socket, std::function<void(const Status&)> on_nonsense);
  /// Ends the connection. The thread ends soon: see is_running().
  void cut();
  bool is_running() const { return running_.load(std::memory_order_acquire) > 0; }

 private:
  struct Connection {
    transport::Channel socket;
    transport::FrameReceiver heads{kServerProtocol, kMaxControlBytes};
    std::atomic<bool> is_cut{false};
    std::function<void(const Status&)> on_nonsense;
  };
  void serve(std::shared_ptr<Connection> connection);
  Status serve_one(transport::Channel& socket);
  Status follow(transport::Channel& socket, const DataRequest& request);
  Status cancelled() const;

  Replica& replica_;
  const int worker_;
  RequestExecutor& executor_;  // of the worker
  const Duration timeout_;
  transport::MemoryFile staging_;           // a payload that was received
  std::shared_ptr<Connection> connection_;  // the last one
  std::shared_ptr<Connection> serving_;     // of the thread that runs
  std::thread thread_;
  std::atomic<int> running_{0};  // threads; one waits for the end of the one before
};

}  // namespace stormo::server
