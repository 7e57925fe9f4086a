#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/comm/job/epoch_world.h>
#include <stormo/membership/elastic_driver.h>
#include <stormo/protocol/rolling_check.h>
#include <stormo/train/elastic/local_replica.h>
#include <stormo/train/elastic/next_group.h>
#include <stormo/train/evaluation/best_score.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/store/rendezvous.h>
#include <stormo/transport/store/store.h>

namespace stormo::train {

/// A process of an elastic job (docs/elastic.md), as the launcher has placed it.
struct ElasticPlace {
  transport::Rendezvous place;    ///< among the ranks that the launcher has started first
  std::string register_address;   ///< see membership::open_register() and is_membership_log()
  std::string job;                ///< name of the job there
  std::uint64_t incarnation = 1;  ///< which start of this rank it is
  std::size_t min_ranks = 1;      ///< with fewer the job waits
  Duration silence = std::chrono::seconds(2);  ///< after which a member counts as lost
  std::string address{};  ///< of this host, by which others reach it; by first_world()

  /// A later start than the first one: it joins others who train.
  bool joins_later() const { return incarnation > 1; }
  /// "a/0": host and local rank.
  std::string identity() const;
};

/// The world that a Trainer borrows: of all ranks, for the first epoch; of this process alone where
/// it joins later. The launcher's Store is not used any more when this returns.
Result<std::unique_ptr<comm::EpochWorld>> first_world(ElasticPlace& place);

/// What survives from one epoch to the next in a process.
struct KeptState {
  std::unique_ptr<Optimizer> optimizer;  ///< with its state; null: this process has no state yet
  /// That processes of this host share, or did; null: none.
  std::shared_ptr<transport::MemoryFile> memory = {};
  bool memory_has_values = false;            ///< else parameters and state are this process's own
  std::optional<LocalReplica> replica = {};  ///< where ranks train on by themselves
  std::int64_t step = 0;                     ///< committed
  std::int64_t samples = 0;
  TimePoint began = std::chrono::steady_clock::now();  ///< the run, here
  /// What ranks do between two steps is still to be done after `step`.
  bool meets = false;
  std::optional<BestScore> best = {};
  protocol::FaultyRanks faulty = {};  ///< by name, as this process has seen it
};

/// The part of a process in an elastic job: its member of the job, and its group in each epoch.
/// Used by the thread that trains.
class ElasticSession {
 public:
  using Order = membership::ElasticDriver::Order;
  struct Outside {
    std::function<void(const std::string&)> say;  ///< a line for people; any thread
    std::function<bool()> is_asked_to_stop;       ///< by a signal
    std::function<bool()> is_asked_to_leave;      ///< this process alone
  };
  /// `world` is that of first_world(), borrowed.
  ElasticSession(comm::EpochWorld& world, ElasticPlace place, Outside outside);
  ~ElasticSession();

  /// What all members have to have in common.
  struct Terms {
    std::uint64_t plan_hash = 0;
    std::uint64_t step = 0;  ///< from which the run starts
    std::uint64_t last_step = 0;
    std::uint64_t global_batch = 1;
    protocol::Healing healing = {};
    /// Of the model, that ranks have, by number among those that the launcher has started first;
    /// empty: each has all of it.
    std::vector<std::uint32_t> parts = {};
  };
  /// Becomes a member. A collective of the first epoch's world, unless this process joins later.
  Status open(const Terms& terms);
  bool is_open() const { return driver_ != nullptr; }
  bool joins_later() const { return place_.joins_later(); }
  /// Its epochs are those of a log, see replay_membership().
  bool replays() const;
  /// That the launcher has started first.
  int first_ranks() const { return place_.place.size; }
  /// Of this process among them, also where it was started again.
  Rank first_rank() const { return place_.place.rank; }
  /// Of them, on equal hosts; nothing: they are not equal.
  std::optional<std::vector<int>> first_ranks_per_host() const;

  void tell(const protocol::ElasticInput& input) { driver_->tell(input); }
  /// What signals have asked for since.
  void tell_wishes();
  /// Blocks. A signal that asks for the end of the run is told meanwhile.
  Order next();
  /// A line for people.
  void say(const std::string& text) const { outside_.say(text); }
  /// The others go on as if this process had been killed. Says why.
  [[noreturn]] void end_process(const std::string& why) const;
  void unread(Order order) { driver_->unread(std::move(order)); }
  void note_progress(bool waits) {
    if (driver_) driver_->note_progress(waits);
  }

  Epoch epoch() const { return record_.epoch; }
  /// Whether only donors compute in this step.
  bool is_healing(std::uint64_t step) const { return healing_.is_healing(record_, step); }
  /// The record of the group that world() is.
  const protocol::ElasticRecord& record() const { return record_; }
  /// Since the epoch before in which this process has trained.
  const protocol::MembershipChange& change() const { return change_; }
  /// Of this process, in records.
  std::string identity() const { return place_.identity(); }
  /// Rank of a member in it.
  Rank rank_of(std::string_view identity) const;
  bool is_donor() const { return record_.is_donor(place_.identity()); }

  /// The epoch is over, or its group could not begin: enter() finds the next one.
  void leave_epoch() { left_ = true; }
  bool has_left() const { return left_; }
  /// This process was asked to leave the job, and has: enter() has failed for that.
  bool has_left_job() const { return left_job_; }
  /// A run in this epoch has failed, `started` or not: before its first step for want of its group
  /// the epoch is over for this process.
  void note_failed_start(bool started);
  /// After open(), in the first epoch's world: waits for the first order. If that is another epoch,
  /// has_left().
  Status enter_first();
  /// Blocks until this process is in the group of an epoch. A failure: there will be none.
  Status enter();
  /// All members are in the present group: nobody waits in the one before it any more.
  void forget_former_group() { next_->discard(world_.take_former()); }
  /// The run in this epoch begins.
  void started();

  KeptState kept;
  /// The run whose checkpoints are overwritten.
  std::optional<std::string> earlier;

 private:
  Status open_replay(protocol::ElasticOptions member);
  Result<Order> wait_for_order();
  void make_next_group();
  transport::Rendezvous place_in(const protocol::ElasticRecord& record) const;
  Status enter_group(const protocol::ElasticRecord& record);
  void abort(Epoch epoch);

  comm::EpochWorld& world_;
  const ElasticPlace place_;
  const Outside outside_;
  protocol::ElasticRecord record_;
  protocol::ElasticRecord trained_;  // the last one whose run has started
  protocol::MembershipChange change_;
  protocol::Healing healing_;
  bool was_member_ = false;
  bool left_ = false;
  bool left_job_ = false;
  std::unique_ptr<transport::StoreClient> launcher_;  // its Store, in a replay
  std::unique_ptr<NextGroup> next_;  // ended before the driver is destroyed, which calls it
  std::unique_ptr<membership::ElasticDriver> driver_;  // last: its threads use the others
};

/// The number that stands for facts in a record: members with other ones are not let in.
std::uint64_t hash_of(const std::vector<comm::Fact>& facts);

}  // namespace stormo::train
