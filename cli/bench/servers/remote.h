#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <cli/bench/servers/echo.h>
#include <cli/bench/servers/options.h>
#include <stormo/comm/communicator.h>
#include <stormo/server/process/shard_server.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// Which ranks are workers and which have a server: the last ones, or, beside workers, the first
/// ones, which are both.
struct RemoteRoles {
  int ranks = 1, servers = 1;
  bool beside = false;
  int workers() const { return beside ? ranks : ranks - servers; }
  bool works(int rank) const { return rank < workers(); }
  bool serves(int rank) const { return beside ? rank < servers : rank >= workers(); }
};

/// Server processes, with plain TCP streams as an opponent. Every gradient is -1, and the learning
/// rate 1: an element counts the pushes, as far as float32 can.
class RemoteShards {
 public:
  /// A collective: starts the servers of this rank, tells all where they are, and connects workers.
  /// `host`: address of this rank's host. `bytes`: of the key of each shard.
  static Result<std::unique_ptr<RemoteShards>> create(comm::Communicator& world,
                                                      const transport::Rendezvous& place,
                                                      const std::string& host, RemoteRoles roles,
                                                      int shards, std::uint64_t bytes);
  ~RemoteShards();
  RemoteShards(const RemoteShards&) = delete;

  /// By a worker: pushes a gradient to every shard, and reads it. All reads are asked for before
  /// the pushes are answered, so shards are sent both ways at the same time.
  Status push_and_pull();
  /// The same bytes over a stream to each server.
  Status stream() { return streams_->push_and_pull(); }
  /// Whether every element of every key is the number of all pushes. A collective.
  Result<bool> counted_all();
  /// A collective; the servers end.
  Status finish();

 private:
  RemoteShards(comm::Communicator& world, RemoteRoles roles) : world_(world), roles_(roles) {}
  Status serve(const transport::Rendezvous& place, const std::string& host, std::uint64_t bytes);
  Status connect(const transport::Rendezvous& place,
                 const std::vector<transport::HostPort>& servers, int count, std::uint64_t bytes);

  comm::Communicator& world_;
  const RemoteRoles roles_;
  // of a server
  std::unique_ptr<server::ShardServer> server_;
  std::unique_ptr<EchoServer> echo_;
  std::thread serving_;
  Status served_;
  // of a worker
  std::unique_ptr<EchoClient> streams_;
  std::shared_ptr<server::WorkerSession> session_;
  std::vector<std::unique_ptr<server::Shard>> shards_;
  std::vector<float> gradient_;
  std::uint64_t sequence_ = 0;  // of the next push to each shard
};

}  // namespace stormo::cli
