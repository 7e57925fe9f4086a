#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/protocol/elastic/elastic_event.h>
#include <stormo/protocol/elastic/loss_history.h>
#include <stormo/protocol/elastic/next_record.h>
#include <stormo/protocol/elastic/peer_watch.h>

namespace stormo::protocol {

struct ElasticOptions {
  MemberId me{};
  std::string address{};
  std::uint32_t shares = 1;
  std::uint32_t part = 0;  ///< of the model
  std::uint64_t plan_hash = 0;
  bool has_state = true;  ///< else it is healed in any case
  /// From which this process starts; `initial_hash` is that of the state after it. Where the first
  /// record has another base, this member is healed.
  std::uint64_t initial_step = 0;
  std::uint64_t initial_hash = 0;
  std::uint64_t last_step = 0;  ///< the job ends after it; 0: when it is asked to
  std::uint64_t global_batch = 1;
  std::size_t min_ranks = 1;
  Healing healing{};
  WatchLimits watch{};
  LossHistory::Limits losses{};
  Duration register_retry = std::chrono::milliseconds(500);
  /// A side that has lost half of the members, and does not know that they have ended, lets the
  /// other one go first; and so does each member for those before it. Likewise it waits before the
  /// same members try again, if they have not done a step.
  Duration yield = std::chrono::milliseconds(500);
  /// For the group with which others are let in. Who has not made it then makes it when they are
  /// in.
  Duration prepare = std::chrono::seconds(5);
  int max_disagreements = 3;  ///< in a row, on the gradients of one step
};

/// One member of an elastic job with synchronous training (docs/adr/0036-elastic-training.md).
/// A pure state machine: copyable, without clock, thread and I/O.
///
/// As long as nothing fails it orders one step after the other: gradients are reduced, all agree
/// that they have them, each applies them. When a member is lost, everybody aborts its part, tells
/// the others what it has, and does nothing more in this epoch. Then the first of those that hear
/// each other writes the record of the next epoch: who goes on, and from which step. Whoever cannot
/// write or read it waits. Members outside ask to be let in, and get the state while the others
/// train.
///
/// membership::ElasticDriver runs it in a process, train::ElasticRun follows its orders.
class ElasticMember {
 public:
  explicit ElasticMember(ElasticOptions options);

  /// Handles one input; returns what to do now, in this order. The first one is a tick.
  std::vector<ElasticAction> handle(const ElasticInput& input, TimePoint now);
  /// When to send a tick if nothing comes before.
  TimePoint wakes_at() const { return wakes_at_; }

  bool has_ended() const { return mode_ == Mode::kEnded; }
  Epoch epoch() const { return record_.epoch; }
  const ElasticRecord& record() const { return record_; }
  const HeldState& held() const { return held_; }
  Standing standing() const;

 private:
  enum class Mode { kOutside, kRunning, kRecovering, kEnded };
  enum class Part { kNone, kGroup, kStep, kAgree, kUpdate, kHash };

  // elastic_member.cc: messages, what is suspected, and when
  void take(const ElasticTick&) {}
  void take(const ElasticHeard& heard);
  void take(const MemberStatus& status);
  void take(const RecordNews& news) { learn(news.record); }
  void take(const ProcessEnded& ended);
  void take(const MainThread& thread);
  void take(const StopAsked&);
  void take(const LeaveAsked&);
  void advance();
  void halt();
  bool is_left_behind() const;
  bool is_any_lost() const;
  void tell_status();
  MemberStatus status() const;
  void send_to_all(const ElasticMessage& message);
  void send(const std::string& to, ElasticMessage message);
  void end(bool is_failure, std::string why, bool has_left = false);
  bool is_member(const MemberId& id) const { return record_.names(id); }

  // elastic_step.cc: the parts of a step
  void take(const PartFailed& failed);
  void take(const GroupStarted& started);
  void take(const GroupReady& ready);
  void take(const StepReduced& reduced);
  void take(const StepAgreed& agreed);
  void take(const UpdateApplied& applied);
  void take(const StateHashed& hashed);
  bool is_outcome(Epoch epoch, Part part);
  void go_on();
  void run_step();
  void agree();
  void compute_hash();
  void close();
  bool wants_change() const;
  bool may_leave() const;
  bool all_leave() const;
  bool is_hash_due() const;
  bool reaches_stop() const { return stop_after_ != 0 && held_.step >= stop_after_; }

  // elastic_epoch.cc: the group of the next epoch is made before it begins
  void wish();
  void hear_wish(const MemberStatus& status);
  void prepare();
  bool is_ready(const ElasticEntry& member) const;
  std::uint32_t ready_group(const ElasticRecord& next) const;
  void write_wish(std::uint64_t step);
  bool awaits_known_agreement() const;

  // from one epoch to the next
  void take(const RegisterAnswer& answer);
  void learn(const ElasticRecord& record);
  void follow_record();
  void join_epoch();
  void stay_outside();
  void recover();
  std::optional<std::vector<Survivor>> survivors() const;
  std::optional<std::vector<Survivor>> chosen_survivors();
  void keep_enough(std::vector<Survivor>& chosen) const;
  bool is_its_turn(const std::vector<Survivor>& chosen, const ElasticRecord& next);
  bool may_join(const MemberStatus& candidate) const;
  Survivor myself() const;
  void read_register();
  void give_up(const std::vector<Survivor>& chosen);
  void pause(std::string why);

  ElasticOptions options_;
  ElasticRecord record_{};
  std::optional<ElasticRecord> newer_{};  // learnt, and not yet followed
  HeldState held_{};
  std::optional<std::uint64_t> hashed_step_{};  // that held_.state_hash is of
  Mode mode_ = Mode::kOutside;
  Part part_ = Part::kNone;
  bool is_at_rest_ = false;  // recovering: what it has was told, and stays
  bool has_group_ = false;
  std::uint64_t stop_after_ = 0;
  bool stop_is_asked_ = false;
  bool leaves_ = false;
  bool changes_ = false;           // all have agreed on another epoch after this step
  std::uint32_t wishes_ = 0;       // of this member in this epoch
  ElasticRecord wish_{};           // the last one of this epoch; epoch 0: none
  std::uint32_t ready_group_ = 0;  // its group, once it is there
  TimePoint wished_at_{};
  std::vector<MemberGone> gone_{};  // since the last epoch whose group has started
  int disagreements_ = 0;
  std::uint64_t progress_ = 0;
  bool is_waiting_ = false;
  bool is_paused_ = false;

  PeerWatch watch_;
  LossHistory losses_;
  TimePoint now_{};
  TimePoint wakes_at_{};
  TimePoint next_beat_{};
  Duration step_began_{};
  Duration halted_at_{};
  bool is_news_ = false;  // the others are to know at once
  bool awaits_register_ = false;
  TimePoint next_read_{};
  TimePoint next_try_{};  // to write, after the register was not reached
  std::optional<TimePoint> ready_since_{};
  std::vector<ElasticAction> actions_;
};

}  // namespace stormo::protocol
