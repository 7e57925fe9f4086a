#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/operation/operation_lane.h>
#include <stormo/comm/watch/activity.h>
#include <stormo/comm/watch/left_ranks.h>
#include <stormo/comm/watch/rank_process.h>
#include <stormo/comm/work.h>
#include <stormo/protocol/stall.h>
#include <stormo/transport/health.h>
#include <stormo/transport/store/store.h>

namespace stormo::comm {

/// Detects that this rank waits in an operation for ranks that do not call it (a stall). It asks
/// all ranks through the Store what they are doing and prints one line. If the stall lasts, it ends
/// the job, and writes the last operations of every rank and the stacks of the missing ones. The
/// waiting ranks detect stalls, so this works under every launcher. It also answers such questions
/// of other ranks. It runs on the Store's thread and on two threads of its own, which are started
/// when needed; never on the program's threads.
class StallWatch {
 public:
  struct Options {
    Rank rank = 0;
    int size = 1;
    std::string identity;
    protocol::StallLimits limits;
    std::string flight_file;  ///< for the last operations; empty: stormo-flight.json
    /// kWait: who does not answer may be stopped, and does not end the job.
    transport::OnStopped on_stopped = transport::OnStopped::kEnd;
    std::shared_ptr<Activities> activities;
    std::shared_ptr<transport::Health> health;
    /// Who has left the job in order; null: nobody.
    std::function<std::vector<LeftRank>()> left;
    FindProcess find_process;                 ///< null: they are not there
    std::function<void(const Status&)> fail;  ///< ends the job on all ranks
  };
  StallWatch(transport::StoreClient& store, Options options);
  /// Must not be called while the Store's thread may still call tick().
  ~StallWatch();
  /// Answers questions from now on.
  Status start();
  /// To be called on the Store's thread with every heartbeat. Does not block.
  void tick();
  /// Ends the threads; tick() does nothing from now on. Blocks until they are done, which takes
  /// seconds during an inquiry.
  void stop();

 private:
  /// An operation that this rank is in.
  struct Waiting {
    std::string group;
    std::uint64_t began = 0;  // which one it is
    bool is_last = false;     // of the program: it ends as it ends
    Duration since{};         // these in awake time
    Duration look_at{};       // not before
    bool warned = false;
    int attempts = 0;
  };
  struct Look {
    Waiting waiting;
    protocol::StallWait wait;
    bool final = false;
    Duration limit{};
  };
  struct Inquiry;

  void follow_calls(Duration awake, const Pace& pace);
  void consider(Waiting& w, const protocol::GroupReport& in, Duration awake, const Pace& pace);
  void look(const Look& look);
  Result<bool> claim(const std::string& key);
  std::vector<protocol::RankReport> ask(const Inquiry& inquiry, std::vector<std::string>* records);
  void find_silent(std::vector<protocol::RankReport>& reports);
  const RankProcess* process_of(Rank rank, Deadline by);
  void look_again(const Look& look, Duration after);
  void end_job(const protocol::Stall& stall);
  void answer_to(std::string_view inquiry);
  void answer(std::string_view inquiry);
  void end_this_process_later();

  transport::StoreClient& store_;
  const Options options_;
  const TickScale scale_;
  std::mutex mutex_;  // guards what follows
  std::vector<Waiting> waiting_;
  Duration slowest_wait_{};
  bool looking_ = false;
  bool stopping_ = false;
  std::unique_ptr<OperationLane> looks_;
  std::unique_ptr<OperationLane> answers_;
  Work look_;
  Work answer_;
  int num_inquiries_ = 0;                  // looks_ only
  std::map<Rank, RankProcess> processes_;  // what the Store has said of them; looks_ only
  bool ending_ = false;                    // answers_ only
};

}  // namespace stormo::comm
