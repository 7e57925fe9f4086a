#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/operation/operation_lane.h>
#include <stormo/comm/watch/activity.h>
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
    std::shared_ptr<Activities> activities;  ///< what this rank is doing
    protocol::StallLimits stall_limits{};
    std::string flight_file{};  ///< of StallWatch
  };
  /// Registers the last will and the watches; blocks until the Store has replied, at most until
  /// `by`. `health` fails as soon as the failure of any rank is known.
  static Result<std::unique_ptr<JobWatch>> start(std::unique_ptr<transport::StoreClient> store,
                                                 std::shared_ptr<transport::Health> health,
                                                 Options options, Deadline by);

  ~JobWatch();

  transport::StoreClient& store() { return *store_; }

  /// Reports that this rank failed with `local`: makes the whole group fail and returns the first
  /// cause. For a lost peer it waits briefly for the peer's last will. For a mismatch and a missed
  /// deadline it adds a table of what every rank was doing. Blocks for at most about a second.
  Status report(const Status& local);

  /// Leaves in order: from now on missing heartbeats of this rank are no failure.
  Status goodbye(Deadline by);

 private:
  JobWatch(std::unique_ptr<transport::StoreClient> store, std::shared_ptr<transport::Health> health,
           Options options);
  std::string collect_activities();
  void answer_alarm();
  void look_for_stuck_calls();
  Status compare(const Activities::Call& call);

  std::shared_ptr<transport::Health> health_;
  Options options_;
  std::unique_ptr<transport::StoreClient> store_;
  std::unique_ptr<StallWatch> stall_watch_;
  std::mutex answer_mutex_;              // the store's thread against the destructor
  std::unique_ptr<OperationLane> lane_;  // for calls that the store's own thread must not make
  Work answer_;
  std::vector<Activities::Call> running_;  // at the last beat; the store's thread only
};

/// Converts a failure to its text in the Store, and back.
std::string encode_failure(const Status& status);
Status decode_failure(std::string_view text);

}  // namespace stormo::comm
