#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/job/host_ranks.h>
#include <stormo/launch/messages/host_job.h>
#include <stormo/transport/call/fields.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

/// A rank of an elastic job, as the agent of its host knows it.
struct KeptRank {
  std::int32_t local_rank = 0;
  std::int32_t incarnation = 1;
  std::int32_t process = 0;  ///< 0: none was started
  bool has_ended = false;
  std::int32_t code = 0;    ///< of one that has ended
  std::int32_t signal = 0;  ///< that has ended it; 0: none
};
void fields(auto& visit, transport::Like<KeptRank> auto& rank) {
  visit("kept rank", rank.local_rank, rank.incarnation, rank.process, rank.has_ended, rank.code,
        rank.signal);
}

/// By which an agent tells its keeper what that needs to take its place. A keeper that is gone
/// changes nothing in an elastic job; any other agent ends with it, and so do its ranks. One
/// thread.
class KeeperLink {
 public:
  explicit KeeperLink(transport::Descriptor keeper) : keeper_(std::move(keeper)) {}

  /// Of an elastic job, before its ranks are started.
  void begin(const HostJob& job);
  void starts(const LaterStart& start);
  void started(Rank rank, pid_t process);
  void exited(Rank rank, int code);
  void signalled(Rank rank, int signal);
  /// The launcher has ended the job: there is nothing to keep.
  void end();

  /// Readable: a byte, when somebody has told the keeper that the host is taken away.
  int descriptor() const { return keeper_.get(); }

 private:
  void tell(Rank rank);
  void send(std::string_view body);

  transport::Descriptor keeper_;
  std::map<Rank, KeptRank> ranks_;
};

/// Calls `agent` in a child process, and waits for its end. If the child has ended before the
/// launcher has ended the job, of an elastic job that outlives its launcher, this process takes its
/// place: the ranks become its children, as those of a subreaper, and it starts again whom the host
/// loses, by the rules of protocol::Supervisor, until all have ended.
///
/// Returns in both processes. Call before other threads are started.
Result<int> with_keeper(const std::function<Result<int>(KeeperLink)>& agent);

}  // namespace stormo::launch
