#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/stall.h>
#include <stormo/transport/net/port_range.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::server {

/// A process's server: it holds shards of one run, and serves workers on any host. The first worker
/// brings the terms of the run, see WorkerSession. A worker on the same host maps the memory of the
/// shards and does its reads and pushes itself; one on another host sends them.
///
/// A worker is lost when its process on this host has ended without finish(), when nothing was
/// heard of it for the timeout that it has set, or when it lives but does not get on while others
/// wait (Options::stall). Then it leaves all shards, others do its steps, and it may come back.
///
/// With backups (see WorkerSession::Options) it also holds a copy of the shards of its predecessor
/// in the workers' list of servers, and goes on with them when that one is lost. Once the run is
/// open another worker takes the place of a chief that is lost.
class ShardServer {
 public:
  struct Options {
    transport::HostPort address;  ///< port 0: any of `ports`
    transport::PortRange ports;
    transport::Secret secret;
    /// Bytes of memory for shards; a run that needs more is refused.
    std::uint64_t memory = std::numeric_limits<std::uint64_t>::max();
    /// How long it still serves after it was told to stop, while the chief is there: who stops all
    /// processes of a run gives the chief the time to save.
    Duration stop_grace = {};
    /// For the chief to come, and for the others once the run is open.
    Duration arrival_time = std::chrono::seconds(60);
    /// For a worker that lives, but does not get on while others wait for it or for the end.
    protocol::StallLimits stall = {};
    /// Gets a line for each event: "worker 2 was lost: ...". May be empty. Called in serve().
    std::function<void(const std::string&)> on_event;
  };
  /// kExhausted when no port is free.
  static Result<std::unique_ptr<ShardServer>> listen(Options options);
  virtual ~ShardServer() = default;

  virtual transport::HostPort address() const = 0;
  /// Blocks until the run has ended. OK when the chief has finished, and the others have too or
  /// had their timeout for it. kCancelled when the chief has said why the run failed, kPeerLost
  /// when it was lost and nobody has taken its place, kDeadlineExceeded when it did not come. With
  /// backups kPeerLost also when this server counts as lost, and kCorrupt when its copy differs
  /// from the original. kInterrupted when `stop_fd` (-1: none) becomes readable, after
  /// `stop_grace`. Workers that are still there learn why. Once.
  virtual Status serve(int stop_fd) = 0;
};

}  // namespace stormo::server
