#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/operation_lane.h>
#include <stormo/comm/work.h>
#include <stormo/transport/health.h>
#include <stormo/transport/store.h>

namespace stormo::comm {

/// A rank's link to the rest of the job outside of collectives: liveness, the first cause of a
/// failure, and what each rank was doing when it happened. Built on the Store's last wills and
/// watches.
class Coordinator {
 public:
  struct Options {
    Rank rank = 0;
    int size = 1;
    std::string identity;  ///< "rank 1 (host a, pid 4711)"
    Duration heartbeat_timeout{0};
    std::function<std::string()>
        activity;  ///< what this rank is doing now; any thread, no blocking
  };
  /// Registers the last will and the watches. `health` fails as soon as any rank's failure is
  /// known.
  static Result<std::unique_ptr<Coordinator>> start(std::unique_ptr<transport::StoreClient> store,
                                                    std::shared_ptr<transport::Health> health,
                                                    Options options, Deadline by);

  ~Coordinator();

  transport::StoreClient& store() { return *store_; }

  /// This rank failed with `local`: makes the whole group fail and returns the first cause. A lost
  /// peer is given a moment to be explained by its last will; a mismatch and a deadline get a table
  /// of what every rank was doing. Blocks for at most about a second.
  Status report(const Status& local);

  /// Leaves well: from now on this rank's silence means nothing.
  Status goodbye(Deadline by);

 private:
  Coordinator(std::unique_ptr<transport::StoreClient> store,
              std::shared_ptr<transport::Health> health, Options options);
  std::string collect_activities();
  void answer_alarm();

  std::shared_ptr<transport::Health> health_;
  Options options_;
  std::unique_ptr<transport::StoreClient> store_;
  std::mutex answer_mutex_;              // the store's thread against the destructor
  std::unique_ptr<OperationLane> lane_;  // for calls that the store's own thread must not make
  Work answer_;
};

/// Text of a failure in the Store, and back.
std::string encode_failure(const Status& status);
Status decode_failure(std::string_view text);

}  // namespace stormo::comm
