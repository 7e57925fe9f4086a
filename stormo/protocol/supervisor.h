#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/protocol/elastic/loss_history.h>

namespace stormo::protocol {

/// Key of the first cause of a failure in the Store of a job, which ranks set and the launcher
/// watches.
inline constexpr std::string_view kFailureKey = "failure";

/// Exit code of a rank that has left its job because somebody else than the launcher asked this
/// rank alone to end: the job goes on without it.
inline constexpr int kHasLeft = 79;
/// With this value SIGTERM comes from the launcher (sigqueue), for this rank alone: it leaves, and
/// exits with 0. Sent otherwise by the launcher it is for all ranks.
inline constexpr int kLeaveMark = 0x1eaf;

/// Where a rank runs, for reports.
struct RankPlace {
  int cross_rank = 0;
  std::string host;
  bool may_be_lost = false;  ///< others do without it, if it fails before any other rank does
  /// Ranks with the same number, other than 0, stand in for each other: the last one is needed.
  int stands_in = 0;
};

/// The events of a launched job: a JobEvent is one of these.
struct Started {
  Rank rank = 0;
  int pid = 0;
};
struct Exited {
  Rank rank = 0;
  int code = 0;
};
struct Signalled {
  Rank rank = 0;
  int signal = 0;
  std::string why{};  ///< the cause, if its host knows it; may be empty
};
/// What StartRank has asked for was not possible.
struct NotStarted {
  Rank rank = 0;
  std::string why;
};
/// The Store's first-cause key was set: "rank 1: all_reduce #9: ...".
struct FailureReported {
  std::string text;
};
/// The person or scheduler that started the job sent a signal to the launcher.
struct UserSignal {
  int signal = 0;
};
/// The connection to this host has ended; its ranks are gone or unreachable.
struct HostLost {
  int cross_rank = 0;
  std::string reason;
};
/// Of a job that replaces its ranks: it is to have so many from now on. `places` are new ones,
/// behind those that have no rank any more (Supervisor::num_free()).
struct SizeAsked {
  int ranks = 0;
  std::vector<RankPlace> places{};
};
/// Likewise: this host is taken away soon. Its ranks leave, and none is started there.
struct HostLeaves {
  int cross_rank = 0;
};
/// No process is left that could report a failure.
struct AllHeard {};
/// Time has passed.
struct Tick {};
using JobEvent = std::variant<Started, NotStarted, Exited, Signalled, FailureReported, UserSignal,
                              HostLost, SizeAsked, HostLeaves, AllHeard, Tick>;

/// The actions of the launcher: a JobAction is one of these.
struct SignalAll {
  int signal = 0;
  bool operator==(const SignalAll&) const = default;
};
struct JobDone {
  int exit_code = 0;
  std::string report;  ///< empty on success; else its first line names the first cause
  bool operator==(const JobDone&) const = default;
};
/// A rank that may be lost is lost; the job goes on.
struct RankLost {
  std::string text;  ///< "rank 2 (host a, pid 4711) killed by signal 9 (SIGKILL)"
  /// Until it is started again, if it is, and has to wait.
  Duration wait = Duration::zero();
  bool operator==(const RankLost&) const = default;
};
/// A lost rank is to be started again where it was. Started or NotStarted is the answer.
struct StartRank {
  Rank rank = 0;
  int incarnation = 0;  ///< which start of it this is: 2 after the first loss, and of a new one
  bool operator==(const StartRank&) const = default;
};
/// It was started.
struct RankStarted {
  Rank rank = 0;
  int incarnation = 0;
  int pid = 0;
  std::string text;  ///< "rank 2 (host a, pid 4790) is started again"
  bool operator==(const RankStarted&) const = default;
};
/// A rank is to leave the job after the present step, and exits with 0 then.
struct LeaveRank {
  Rank rank = 0;
  bool operator==(const LeaveRank&) const = default;
};
/// It has.
struct RankLeft {
  Rank rank = 0;
  std::string text;  ///< "rank 2 (host a, pid 4790) has left"
  bool operator==(const RankLeft&) const = default;
};
using JobAction =
    std::variant<SignalAll, RankLost, StartRank, RankStarted, LeaveRank, RankLeft, JobDone>;

/// Decides when a launched job ends and with which exit code. A pure state machine: copyable, no
/// clock and no I/O.
///
/// The first failure ends all ranks: SIGTERM after `settle`, SIGKILL `grace` after that. During
/// `settle` the failed rank's own report may still arrive, and the other ranks report and end by
/// themselves. A rank that exits with 0 has not failed. SIGINT and SIGTERM of the user are
/// forwarded; a second signal kills. Exit codes: 0; 1 for a failed run; 75 when a rank exited with
/// 75 (a rank was lost, and there is a checkpoint); 2 when one exited with 2 (no step was run); 130
/// and 143 for an interrupted run. There is exactly one JobDone, at most settle + grace + `give_up`
/// after the first failure.
///
/// Ranks that may be lost are none of that: their failure is told and changes nothing else, but for
/// the last one of those that stand in for each other, unless one of these has ended well. When all
/// other ranks have ended well, they have `follow` to end, too; then they are ended. Where all
/// ranks may be lost, that time begins when one has ended well, and rank 0, or all others, have
/// ended.
///
/// With `replaces` such a rank is started again, also the last one of those that stand in for each
/// other. One that is lost more often than LossHistory lets pass has to wait, and is started again
/// only if another one lives meanwhile: so a program that always fails ends. There is no start of a
/// rank that has exited with 2 or whose host is lost, and none after a rank has ended well, or as
/// interrupted, after a signal of the user, or after a failure. A rank that exits with 75 says that
/// nobody has anything to go on with: that ends the job. Such a job may be asked to have more ranks
/// or fewer (supervisor_size.cc). Whoever leaves then, or exits with kHasLeft, has neither failed
/// nor ended well.
class Supervisor {
 public:
  struct Options {
    Duration settle = std::chrono::milliseconds(300);
    Duration grace = std::chrono::milliseconds(1500);
    /// After SIGKILL: how long to wait for the confirmation of a host.
    Duration give_up = std::chrono::milliseconds(700);
    /// After the last clean exit: how long to wait for a late report about a rank that left without
    /// goodbye; AllHeard ends the wait.
    Duration linger = std::chrono::milliseconds(40);
    /// After a rank has exited as interrupted, or all that may not be lost have ended: how long to
    /// wait for the others to do the same.
    Duration follow = std::chrono::seconds(10);
    /// Rank 0 says why it fails, also when another rank is the cause. Then the report of the job
    /// does not say it again.
    bool rank_0_reports = false;
    bool replaces = false;  ///< ranks that may be lost are started again
  };

  Supervisor(std::vector<RankPlace> places, Options options);

  /// Handles one event; returns the actions to do now, in this order.
  std::vector<JobAction> handle(const JobEvent& event, TimePoint now);
  /// When to send a Tick if no event comes before; empty: never.
  std::optional<TimePoint> wakes_at() const;
  bool done() const { return phase_ == Phase::kDone; }
  /// The ranks that run, or are started again when they have waited, without those that leave.
  std::vector<Rank> ranks() const;
  int num_ranks() const { return static_cast<int>(ranks().size()); }
  /// How many ranks have left, or are lost for good, on hosts that are there: the first that come
  /// when there are to be more.
  int num_free() const;
  int num_on_host(int cross_rank) const;  ///< places
  bool is_anybody_leaving() const;        ///< told to, and not gone yet
  /// Whether SizeAsked changes anything: not when the job is about to end.
  bool may_change() const { return replaces(); }
  bool is_closed(int cross_rank) const;  ///< its host is lost, or leaves
  /// Whether it waits only for a late report or AllHeard.
  bool lingers() const { return phase_ == Phase::kLingering; }

 private:
  enum class Phase { kRunning, kLingering, kSettling, kTerminating, kKilling, kDone };
  struct Member {
    RankPlace place;
    int pid = 0;
    bool gone = false;
    bool lost = false;      ///< with its host
    bool by_itself = true;  ///< ended before we ended it
    bool excused = false;   ///< failed, and may be lost
    std::optional<int> code{};
    std::optional<int> signal{};
    std::string why{};
    int incarnation = 1;
    bool is_starting = false;               ///< after a loss, and not yet Started
    std::optional<TimePoint> returns_at{};  ///< gone, and to be started again
    std::string unstarted{};                ///< why it could not be
    bool is_added = false;                  ///< the job has begun without it
    bool wanted = true;                     ///< else it leaves, or is gone for good
    bool leaves = false;                    ///< its process was told to
    bool left = false;                      ///< gone, as it was told
    /// Runs, or will, and is to stay.
    bool is_present() const { return wanted && (!gone || returns_at); }
  };
  static constexpr int kConfiguration = 2, kSavedTryAgain = 75, kSignalBase = 128;  ///< exit codes

  void excuse_frozen();
  void take(const Started& e);
  void take(const NotStarted& e, TimePoint now);
  void take(const Exited& e, TimePoint now);
  void take(const Signalled& e, TimePoint now);
  void take(const HostLost& e, TimePoint now);
  void take(const SizeAsked& e, TimePoint now);
  void take(const HostLeaves& e);
  void take_user_signal(int signal, std::vector<JobAction>& actions);
  void advance(TimePoint now, std::vector<JobAction>& actions);
  void finish(std::vector<JobAction>& actions);

  bool all_gone() const;
  bool needed_gone() const;
  void follow_needed(TimePoint now, std::vector<JobAction>& actions);
  bool valid(Rank r) const { return r >= 0 && r < static_cast<int>(members_.size()); }
  bool explained() const;
  void note_end(Rank rank, TimePoint now);
  bool replaces() const;
  void plan_return(Rank rank, TimePoint now);
  void dismiss(Member& m);
  bool is_free(const Member& m) const;
  bool has_left(const Member& m) const;
  void note_left(Rank rank, TimePoint now);
  static bool ended_well(const Member& m) { return m.code == 0 && !m.left; }
  void start_again(TimePoint now, std::vector<JobAction>& actions);
  static bool is_crash(int signal);
  static std::optional<int> interruption(int code);
  bool is_failure(const Member& m) const;
  bool is_dispensable(const Member& m, TimePoint now) const;
  Member* open_member(Rank rank);
  int exit_code() const;
  std::string report() const;
  std::string first_line() const;
  bool rank_0_has_said_it() const;
  std::string name(Rank rank) const;
  std::string ending(const Member& m) const;
  std::string remedies() const;

  std::vector<Member> members_;
  Options options_;
  Phase phase_ = Phase::kRunning;
  TimePoint phase_ends_ = TimePoint::max();
  bool failed_ = false;
  bool interruption_pending_ = false;  ///< a rank ended as interrupted; the others should follow
  std::optional<int> user_signal_;
  std::optional<int> interrupted_by_;  ///< signal that ended the run, of the user or of a rank
  bool killed_by_user_ = false;
  bool late_ = false;  ///< others did not follow an interrupted rank
  std::optional<Rank> first_failed_;
  std::optional<Rank> first_crashed_;
  std::optional<std::string> report_text_;
  std::optional<Rank> report_rank_;
  std::optional<HostLost> lost_host_;
  std::vector<int> closed_hosts_;  ///< lost, or about to be
  LossHistory history_{LossHistory::Limits{}};
  std::vector<JobAction> news_;  ///< of ranks that were lost and started, not yet told
};

/// Part of the failure text in the Store for a rank whose connection has ended without goodbye.
inline constexpr std::string_view kEndedInGroup = "died, or ended before it left the group";

/// The rank that a failure text starts with or first mentions ("rank 3: ..."); empty when none.
std::optional<Rank> named_rank(std::string_view text);
/// "signal 9 (SIGKILL)".
std::string signal_text(int signal);

}  // namespace stormo::protocol
