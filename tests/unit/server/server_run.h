#pragma once

// A server in a thread and workers, some of them processes, for tests.
#include <sys/eventfd.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <stormo/server/message/run_terms.h>
#include <stormo/server/process/shard_server.h>
#include <stormo/server/worker/worker_session.h>

namespace stormo::server {

/// Nothing that goes well takes so long, also on a machine that is busy: the limit of a wait, and a
/// silence after which nobody is lost who lives.
inline constexpr Duration kLong = std::chrono::seconds(60);
/// The silence after which one is lost who has to be. Who is under it lives before.
inline constexpr Duration kSilence = std::chrono::seconds(5);

/// Waits until `is_true`, at most for kLong; then false.
bool comes_true(const std::function<bool()>& is_true);

/// Calls `work` with 0 to `count` - 1, each in a thread of its own, and waits for all. What is
/// thrown is a failure of the test.
void side_by_side(std::size_t count, const std::function<void(std::size_t)>& work);

/// A child process that runs `work` once it is told the port of a server. Made before the test has
/// threads. Killed at the end.
class WorkerProcess {
 public:
  /// `work` returns the exit code.
  explicit WorkerProcess(const std::function<int(transport::HostPort)>& work);
  WorkerProcess(WorkerProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), port_pipe_(std::move(other.port_pipe_)) {}
  ~WorkerProcess();
  void start(std::uint16_t port);
  void send_signal(int signal) const;
  /// Blocks until its end; the exit code, or -1 after a signal.
  int exit_code();

 private:
  pid_t pid_ = -1;
  transport::Descriptor port_pipe_;
};

/// A server in a process of its own. Made before the test has threads. Killed at the end.
class ServerProcess {
 public:
  ServerProcess();
  const transport::HostPort& address() const { return address_; }
  void send_signal(int signal) const { process_->send_signal(signal); }
  /// Blocks until its end: the outcome of serve(), or kCancelled after a signal.
  Status outcome();

 private:
  transport::HostPort address_;
  transport::Descriptor outcome_;  // a pipe
  std::unique_ptr<WorkerProcess> process_;
};

/// Servers of a run with backups, each in a process of its own.
class ServersWithBackups {
 public:
  explicit ServersWithBackups(std::size_t count = 2) : servers_(count) {}
  ServerProcess& at(std::size_t server) { return servers_[server]; }
  WorkerSession::Options options(int worker, int workers, Duration timeout = kLong) const;

 private:
  std::vector<ServerProcess> servers_;
};

/// A server in a thread of this process.
class ServedRun {
 public:
  explicit ServedRun(transport::Secret secret = {},
                     std::uint64_t memory = std::numeric_limits<std::uint64_t>::max());
  ~ServedRun();
  transport::HostPort address() const { return server_->address(); }
  /// Blocks until serve() has returned.
  Status outcome();
  bool has_event(const std::string& part) const;
  std::string events() const;

 private:
  std::unique_ptr<ShardServer> server_;
  transport::Descriptor stop_;
  std::thread thread_;
  Status outcome_;
  mutable std::mutex mutex_;
  std::vector<std::string> events_;
};

WorkerSession::Options session_options(const transport::HostPort& server, int worker, int workers,
                                       Duration timeout = kLong, bool share_memory = true);

/// Terms for two shards of float64, one of them with two pieces.
RunTerms small_terms(int workers, protocol::PolicyOptions::Kind policy);
inline constexpr std::int64_t kShardElements = 20'000;
/// Terms for shards of one piece each, with plain SGD: with gradients and learning rates of 1 the
/// weights count the updates.
RunTerms counting_terms(
    int workers, protocol::PolicyOptions::Kind policy = protocol::PolicyOptions::Kind::kAsync,
    std::size_t shards = 2);

struct Worker {
  std::shared_ptr<WorkerSession> session;
  std::vector<std::unique_ptr<Shard>> shards;

  /// Connects and takes its place; the chief opens the run. Throws.
  static Worker begin(const WorkerSession::Options& options, const RunTerms& terms);
  /// Pushes a gradient of ones to a shard, every second one in parts.
  Result<Shard::Pushed> push(std::size_t shard, std::uint64_t sequence, double lr = 1,
                             Deadline by = Deadline::after(kLong));
  /// The first value of a shard, if all elements of the first piece are equal; else throws.
  double value(std::size_t shard);
};

}  // namespace stormo::server
