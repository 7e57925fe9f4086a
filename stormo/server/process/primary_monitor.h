#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/server/message/data_message.h>
#include <stormo/server/message/server_message.h>
#include <stormo/server/replica/remote_worker.h>
#include <stormo/server/replica/replica.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/shm/peer_process.h>

namespace stormo::server {

/// At a backup: the server that is the primary of its copy. It is silent when its process on this
/// host has ended, when nothing was heard of it for its timeout, or when it was not connected and
/// nothing was heard of it for one second. For one thread.
class PrimaryMonitor {
 public:
  /// `copy`: a backup; borrowed.
  explicit PrimaryMonitor(Replica& copy) : copy_(copy) {}

  /// kExhausted for another process than the one that came first.
  Status admit(const WorkerHello& hello);
  /// kIo for a stranger.
  Status check(const Attachment& attachment) const;
  /// It has a data connection, see RemoteWorker.
  void attach(transport::Channel socket, std::function<void(const Status&)> on_nonsense);
  void hear(TimePoint now) { heard_ = now; }
  /// `pause`: for so long this process was stopped.
  void watch(bool is_connected, TimePoint now, Duration pause);
  bool is_silent() const { return is_silent_; }
  /// Blocks until all that it has sent is executed; nothing more is taken.
  void end();

 private:
  Replica& copy_;
  std::uint64_t token_ = 0;  // 0: it has not come
  Duration timeout_{};
  TimePoint heard_{};
  std::optional<transport::PeerProcess> process_;
  std::optional<RemoteWorker> remote_;
  bool is_silent_ = false, is_over_ = false;
};

}  // namespace stormo::server
