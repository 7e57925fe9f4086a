#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/operation/operation_lane.h>
#include <stormo/comm/watch/activity.h>
#include <stormo/comm/watch/left_ranks.h>
#include <stormo/comm/watch/stall_watch.h>
#include <stormo/comm/work.h>
#include <stormo/protocol/stall.h>
#include <stormo/transport/health.h>
#include <stormo/transport/store/store.h>

namespace stormo::comm {

/// A rank's connection to the rest of the job besides collectives: liveness, the first cause of a
/// failure, and what each rank was doing when it happened. It uses the Store's last wills and
/// watches. Between hosts it also finds ranks that wait for each other because they called
/// different operations, after they have waited for two heartbeats of the Store's session.
class JobWatch {
 public:
  struct Options {
    Rank rank = 0;
    int size = 1;
    std::string identity;  ///< "rank 1 (host a, pid 4711)"
    Duration heartbeat_timeout{0};
    transport::OnStopped on_stopped = transport::OnStopped::kEnd;
    std::shared_ptr<Activities> activities;  ///< what this rank is doing
    protocol::StallLimits stall_limits{};
    std::string flight_file{};   ///< of StallWatch
    FindProcess find_process{};  ///< the same
    bool rank_0_serves = false;  ///< the Store; not the launcher
  };
  /// Registers the last will and the watches; blocks until the Store has replied, at most until
  /// `by`. `health` fails as soon as the failure of any rank is known.
  static Result<std::unique_ptr<JobWatch>> start(std::unique_ptr<transport::StoreClient> store,
                                                 std::shared_ptr<transport::Health> health,
                                                 Options options, Deadline by);

  ~JobWatch();

  transport::StoreClient& store() { return *store_; }

  /// Reports that this rank failed with `local`: makes the whole group fail and returns the first
  /// cause: that rank 0 is lost, if it serves the Store and does not answer. For a lost peer it
  /// waits briefly for the peer's last will, and says if `call`, in which this rank was, needs a
  /// rank that has left. For a mismatch and a missed deadline it adds a table of what every rank
  /// was doing. Blocks for at most about a second.
  Status report(const Status& local, const Activities::Call& call = {});

  /// Ends this rank's session in order: its missing heartbeats are no failure. What the job's Store
  /// is asked from now on fails with kCancelled.
  void end();
  /// The same, while others go on: they are told, and how far this rank was in each group. An
  /// operation that needs it makes the job fail at one of the next heartbeats of a rank that waits.
  /// An error: they could not be told.
  Status leave();
  /// The same of one group, while this rank stays in the job.
  Status leave(const Activities::Group& group);
  /// Removes what the Store has of these groups: all their ranks have left them in order.
  void forget(std::span<const std::string> groups);
  /// Whether a rank has left the job in order. Asks the Store, at most twice in a second. Any
  /// thread.
  bool has_left(Rank rank);

 private:
  JobWatch(std::unique_ptr<transport::StoreClient> store, std::shared_ptr<transport::Health> health,
           Options options);
  std::string collect_activities();
  void answer_alarm();
  void look_for_stuck_calls();
  Status look_at(const Activities::Call& call);
  bool still_runs(const Activities::Call& call) const;
  Result<std::vector<LeftRank>> left_in(const std::string& group);
  Status tell_leaving(const Activities::Group& group, Deadline by);
  Result<std::vector<Rank>> left_and_needed(const Activities::Call& call);
  Status fail_for_left(const Activities::Call& call, const std::vector<Rank>& left);
  Status compare(const Activities::Call& call);
  void end_threads();

  std::shared_ptr<transport::Health> health_;
  const std::shared_ptr<transport::Health> told_ = std::make_shared<transport::Health>();
  Options options_;
  std::unique_ptr<transport::StoreClient> store_;
  std::unique_ptr<StallWatch> stall_watch_;
  std::mutex answer_mutex_;              // the store's thread against whoever ends the session
  std::unique_ptr<OperationLane> lane_;  // for calls that the store's own thread must not make
  Work answer_;
  bool is_looking_ = false;  // guarded by answer_mutex_
  std::mutex left_mutex_;
  std::vector<LeftRank> left_;                                // guarded by left_mutex_
  Deadline left_is_old_ = Deadline::after(Duration::zero());  // the same
  RunningCalls running_;                                      // the store's thread only
};

/// Converts a failure to its text in the Store, and back.
std::string encode_failure(const Status& status);
Status decode_failure(std::string_view text);

}  // namespace stormo::comm
