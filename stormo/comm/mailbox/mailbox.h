#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/comm/mailbox/matching.h>
#include <stormo/comm/mailbox/peers.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/pending_operation.h>
#include <stormo/comm/watch/activity.h>
#include <stormo/transport/health.h>

namespace stormo::comm {

/// The messages of one rank in one group. They make progress beside the group's collectives: a
/// caller that waits moves them itself; what nobody waits for is moved by a thread, which is
/// started when it is first needed and rests while nothing is under way: one for the peers of this
/// host, one for the others. Any thread may call.
///
/// Whoever moves messages holds the lock, but not while it sleeps or reads a long message of this
/// host: for at most some 0.1 ms, however long a message is. A call that posts a message has the
/// lock next.
class Mailbox final : public Driver {
 public:
  struct Parts {
    int size = 1;                          ///< ranks of the group
    std::unique_ptr<Peers> host, network;  ///< null: there are none
    std::vector<bool> in_host;             ///< by rank
    std::shared_ptr<const transport::Health> health;
    std::shared_ptr<Activity> activity;  ///< has what callers wait for
    /// Makes the group fail. `operation`: what was waited for, or else the oldest.
    std::function<void(const Operation& operation, Status outcome)> give_up;
    /// Of a message that is complete. Called under the lock.
    std::function<void(const Operation& operation, TimePoint begin)> done;
  };
  explicit Mailbox(Parts parts);
  ~Mailbox() { end(); }
  Mailbox(const Mailbox&) = delete;

  /// Messages of different channels never match.
  enum class Channel : std::uint16_t {
    kUser,  ///< the caller's own
    kShift  ///< of an exclusive scan
  };
  /// A send or receive that has been checked. Does not wait.
  Work submit(const Request& request, Channel channel = Channel::kUser);
  /// Waits. If `by` passes first, the group fails.
  Status run(const Request& request, Deadline by, Channel channel = Channel::kUser);
  /// Waits until this rank may leave: no send is pending, and peers have taken what they must. An
  /// error: they have not taken all of what is complete here.
  Status flush(Deadline by);
  /// Ends what is pending with kCancelled, and the threads. No call may come later.
  void end();
  /// Returns when no call of `done` is under way that began before this.
  void await_done_calls() const { const std::lock_guard lock(mutex_); }
  /// Bytes of messages sent to other hosts.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

  void enter() override { ++num_inside_; }
  void drive(std::uint64_t id, Deadline by) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Id = Matching::Id;
  struct Pending {
    std::shared_ptr<PendingOperation> handle;  ///< null: of run(), which waits until it is gone
    Status* outcome = nullptr;                 ///< of run()
    Operation operation;
    Rank peer = 0;
    Rank* source = nullptr;
    std::uint64_t bytes_to_network = 0;
    TimePoint begin{};
    int waiters = 0;
    int copiers = 0;  // threads that copy it without the lock: it may not end before that
  };
  struct Copying {
    Matching::Fetch fetch;
    std::size_t offset = 0;
  };
  /// One way to peers.
  struct Side {
    std::unique_ptr<Peers> peers;
    int pending = 0;             ///< operations that it may complete
    int sends = 0;               ///< of these
    std::deque<Copying> copies;  ///< messages that are read where they lie, in turns
    int callers = 0;             ///< that move messages; the thread leaves it to them
    int sleepers = 0;            ///< in peers->sleep()
    std::thread thread;
    bool is_resting = false;         ///< the thread, until `needed`
    std::condition_variable needed;  ///< only the thread waits
  };
  struct Completed {
    std::shared_ptr<PendingOperation> handle;
    Status outcome;
    bool is_awaited = false;  ///< by another thread than the one that completes it
  };

  /// Who moves messages: the thread, or a caller that waits.
  struct Caller {
    Id own = 0;            ///< the operation that it waits for, if it is one
    Rank peer = kAnyRank;  ///< of that
    bool is_thread = false;
  };

  bool is_host(Rank rank) const { return parts_.in_host[static_cast<std::size_t>(rank)]; }
  Side& side_of(Rank rank) { return is_host(rank) ? host_ : network_; }
  bool may_bring(const Side& side, Rank peer) {
    return side.peers && (peer == kAnyRank || &side_of(peer) == &side);
  }
  static bool has_work(const Side& side) {
    return !side.copies.empty() || (side.peers && side.peers->is_busy());
  }
  static bool is_busy(const Side& side) { return side.pending > 0 || has_work(side); }

  // mailbox.cc: operations
  Lock lock_to_post();
  void post(Lock& lock, Id id, Pending pending, const Request& request, Channel channel);
  void wait(Lock& lock, Id id, Deadline by);
  void await(Id id, int by);
  void show();
  const Status* ended_for(const Pending& pending) const;
  void count(const Pending& pending, int by);
  void apply(Matching::Effects& effects, Id own, std::vector<Completed>& completed);
  void complete(Pending& pending, Status outcome, bool is_awaited,
                std::vector<Completed>& completed);
  void conclude(Lock& lock, std::vector<Completed> completed, Status outcome);
  void give_up(Lock& lock, const Operation& operation, Status outcome);
  void fail(Lock& lock, const Status& outcome);
  Operation oldest() const;

  // progress.cc: who moves messages, and when
  void progress(Lock& lock, Side& side, const Caller& caller, Deadline by);
  bool turn(Lock& lock, Side& side, Id own);
  bool copy(Lock& lock, Side& side, Id own);
  Result<bool> push(Side& side, Id own, std::vector<Completed>& completed);
  void give_way(Lock& lock);
  void leave(Lock& lock, Side& side);
  void leave_to_thread(Lock& lock, Side& side);
  void wake(Side& side);
  void serve(Side& side);

  Parts parts_;
  mutable std::mutex mutex_;
  std::atomic<int> num_posting_{0};  // calls that want the lock
  std::atomic<int> num_inside_{0};   // calls that end() waits for
  Matching matching_;
  Id next_id_ = 1;
  std::map<Id, Pending> pending_;  // by age
  std::set<Id> awaited_;           // of pending_
  Id shown_ = 0;                   // in the activity
  std::vector<Status> ended_;      // by rank: not OK if it takes part no more
  int num_ended_ = 0;
  bool is_failed_ = false, is_stopping_ = false;
  std::condition_variable changed_;  // an operation has ended
  int num_waiting_ = 0;              // for changed_
  std::atomic<std::uint64_t> bytes_sent_{0};
  Side host_, network_;
};

}  // namespace stormo::comm
