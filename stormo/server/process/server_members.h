#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/worker_stalls.h>
#include <stormo/server/message/data_message.h>
#include <stormo/server/message/server_message.h>
#include <stormo/server/process/hosted_partitions.h>
#include <stormo/server/replica/remote_worker.h>
#include <stormo/transport/shm/peer_process.h>

namespace stormo::server {

/// The workers of a run as one server knows them. A worker is lost when its process on this host
/// has ended, when nothing was heard of it for its timeout, or when it does not get on while others
/// wait. Then it leaves the parts that the server holds, and it may come back. For one thread.
class ServerMembers {
 public:
  struct Member {
    enum class Stage { kHere, kLost, kFinished } stage = Stage::kHere;
    std::uint64_t token = 0;  ///< of its session
    Duration timeout{};
    TimePoint heard{};
    std::optional<transport::PeerProcess> process = {};  ///< if it is on this host
    pid_t pid = 0;                                       ///< of it
    std::string lost_why = {};
    std::optional<std::uint64_t> stuck_at = {};  ///< its progress when it was lost by a stall
    bool is_leaving = false;                     ///< lost, but not yet out of all shards
    bool is_buried = false;
    bool is_refused = false;                       ///< it was told why, and will end
    std::optional<std::uint32_t> asks_terms = {};  ///< id of a request that waits for the chief
    std::string terms = {};                        ///< of this request
    /// By part that the server holds, if it does not map the memory; the last: the coordinator.
    std::array<std::unique_ptr<RemoteWorker>, 3> remotes = {};
  };
  struct Options {
    HostedPartitions* parts = nullptr;      ///< borrowed
    std::function<bool(int)> is_connected;  ///< whether a worker has a control connection
    protocol::StallLimits stall;
    std::function<void(const std::string&)> on_event;
  };
  explicit ServerMembers(Options options) : options_(std::move(options)), stalls_(options_.stall) {}

  /// Makes the worker a member, or finds that it is one. kExhausted while another process has its
  /// number.
  Status admit(const WorkerHello& hello);
  /// A worker that was admitted.
  Member& at(int worker) { return members_.at(worker); }
  /// Null when it has never come.
  const Member* find(int worker) const;
  bool any_here() const;
  /// The lowest worker that is here; nothing if none is.
  std::optional<int> first_here() const;
  /// By number.
  std::map<int, Member>& all() { return members_; }

  /// For a data connection. kIo for a stranger.
  Result<RemoteWorker*> remote_of(const Attachment& attachment);
  /// `state`: what it says of itself, if it does. A worker that was lost is back, unless it is
  /// still where it was lost because of a stall.
  void hear(int worker, TimePoint now, const protocol::WorkerPace* state = nullptr);
  /// Its end is no loss from now on.
  void finish(int worker);
  /// `since`: the last call; for `pause` of this time this process was stopped.
  void watch(TimePoint now, Duration since, Duration pause);
  /// Warns about workers that do not get on while others wait, and after a time they are lost; on
  /// this host they are killed, but for the chief.
  void look_for_stalls(int chief);
  /// Kills the worker's process, if it is on this host.
  void end_process(int worker);
  /// Workers that have not come within `limit` are lost.
  void miss_absent(Duration limit);
  /// This server goes on with a part that another one took care of: members that are lost leave it,
  /// and those that are here count as lost no more.
  void take_over();

 private:
  Status make_room(int worker);
  void evict(int worker, Member& member, const std::string& why);
  void take_out(int worker, Member& member);
  void event(const std::string& line) const { options_.on_event(line); }

  Options options_;
  std::map<int, Member> members_;
  protocol::WorkerStalls stalls_;
  Duration awake_{};  // time without pauses of this process
};

}  // namespace stormo::server
