#include <stormo/protocol/supervisor.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>
#include <utility>

namespace stormo::protocol {
namespace {

/// The first start of a rank that comes later: it joins others, as one that is started again.
constexpr int kFirstOfNew = 2;

}  // namespace

std::optional<Rank> named_rank(std::string_view text) {
  constexpr std::string_view kWord = "rank ";
  for (std::size_t at = text.find(kWord); at != std::string_view::npos;
       at = text.find(kWord, at + 1)) {
    Rank rank = 0;
    const char* begin = text.data() + at + kWord.size();
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), rank);
    if (error == std::errc{} && end != begin && rank >= 0) return rank;
  }
  return std::nullopt;
}

std::string signal_text(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return abbreviation ? fmt::format("signal {} (SIG{})", signal, abbreviation)
                      : fmt::format("signal {}", signal);
}

Supervisor::Supervisor(std::vector<RankPlace> places, Options options) : options_(options) {
  members_.reserve(places.size());
  for (RankPlace& place : places) members_.push_back({.place = std::move(place)});
}

std::vector<JobAction> Supervisor::handle(const JobEvent& event, TimePoint now) {
  std::vector<JobAction> actions;
  if (phase_ == Phase::kDone) return actions;
  if (const auto* started = std::get_if<Started>(&event)) {
    take(*started);
  } else if (const auto* not_started = std::get_if<NotStarted>(&event)) {
    take(*not_started, now);
  } else if (const auto* exited = std::get_if<Exited>(&event)) {
    take(*exited, now);
  } else if (const auto* signalled = std::get_if<Signalled>(&event)) {
    take(*signalled, now);
  } else if (const auto* reported = std::get_if<FailureReported>(&event)) {
    if (!report_text_) {
      report_text_ = reported->text;
      report_rank_ = named_rank(reported->text);
      if (report_rank_ && !valid(*report_rank_)) report_rank_.reset();
      failed_ = true;
      excuse_frozen();
    }
  } else if (const auto* user = std::get_if<UserSignal>(&event)) {
    take_user_signal(user->signal, actions);
  } else if (const auto* lost = std::get_if<HostLost>(&event)) {
    take(*lost, now);
  } else if (const auto* size = std::get_if<SizeAsked>(&event)) {
    take(*size, now);
  } else if (const auto* leaving = std::get_if<HostLeaves>(&event)) {
    take(*leaving);
  } else if (std::holds_alternative<AllHeard>(event)) {
    if (phase_ == Phase::kLingering) phase_ends_ = now;
  }
  actions.insert(actions.end(), news_.begin(), news_.end());
  news_.clear();
  advance(now, actions);
  return actions;
}

std::optional<TimePoint> Supervisor::wakes_at() const {
  if (phase_ == Phase::kDone) return std::nullopt;
  TimePoint at = phase_ends_;
  for (const Member& m : members_) at = std::min(at, m.returns_at.value_or(at));
  if (at == TimePoint::max()) return std::nullopt;
  return at;
}

Supervisor::Member* Supervisor::open_member(Rank rank) {
  if (!valid(rank)) return nullptr;
  Member& m = members_[static_cast<std::size_t>(rank)];
  return m.gone ? nullptr : &m;
}

std::optional<int> Supervisor::interruption(int code) {
  if (code == kSignalBase + SIGINT || code == kSignalBase + SIGTERM) return code - kSignalBase;
  return std::nullopt;
}

bool Supervisor::is_failure(const Member& m) const {
  if (m.excused) return false;
  if (!m.unstarted.empty()) return !user_signal_;
  if (m.code) return *m.code != 0 && !interruption(*m.code);
  if (m.signal) return !(user_signal_ && (*m.signal == SIGINT || *m.signal == SIGTERM));
  return false;
}

/// Signals that another rank's orderly failure cannot cause: such a death is a first cause, even if
/// a peer that noticed it was quicker to report.
bool Supervisor::is_crash(int signal) {
  return signal == SIGKILL || signal == SIGSEGV || signal == SIGBUS || signal == SIGILL ||
         signal == SIGFPE;
}

/// Whether the run goes on without it, which has just gone.
bool Supervisor::is_dispensable(const Member& m, TimePoint now) const {
  if (!m.place.may_be_lost || phase_ != Phase::kRunning || failed_) return false;
  if (options_.replaces && m.code == kSavedTryAgain) return false;  // it knows that none can go on
  const int group = m.place.stands_in;
  if (m.returns_at && *m.returns_at <= now) return true;
  return group == 0 || std::ranges::any_of(members_, [group](const Member& other) {
           return other.place.stands_in == group && (!other.gone || ended_well(other));
         });
}

/// Whether a rank that has just been lost has a run to come back to.
bool Supervisor::replaces() const {
  return options_.replaces && phase_ == Phase::kRunning && !failed_ && !interrupted_by_ &&
         std::ranges::none_of(members_, &ended_well);
}

void Supervisor::plan_return(Rank rank, TimePoint now) {
  Member& m = members_[static_cast<std::size_t>(rank)];
  if (!replaces() || !m.place.may_be_lost || !m.wanted) return;
  if (m.code == kConfiguration || m.code == kSavedTryAgain) return;
  const std::string identity = std::to_string(rank);
  history_.note(identity, now);
  m.returns_at = history_.returns_at(identity, now);
}

void Supervisor::start_again(TimePoint now, std::vector<JobAction>& actions) {
  const bool wanted = replaces();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& m = members_[i];
    if (!wanted) m.returns_at.reset();
    if (!m.returns_at || *m.returns_at > now) continue;
    m = {.place = m.place,
         .incarnation = m.incarnation + 1,
         .is_starting = true,
         .is_added = m.is_added};
    actions.emplace_back(StartRank{static_cast<Rank>(i), m.incarnation});
  }
}

void Supervisor::note_end(Rank rank, TimePoint now) {
  Member& m = members_[static_cast<std::size_t>(rank)];
  m.gone = true;
  m.is_starting = false;
  if (has_left(m)) return note_left(rank, now);
  m.by_itself = phase_ != Phase::kTerminating && phase_ != Phase::kKilling && !killed_by_user_;
  excuse_frozen();
  if (!m.by_itself) return;
  if (is_failure(m)) plan_return(rank, now);
  if (is_failure(m) && is_dispensable(m, now)) {
    m.excused = true;
    news_.emplace_back(RankLost{name(rank) + (m.code ? " ended with " : " ") + ending(m),
                                m.returns_at.value_or(now) - now});
  } else if (is_failure(m)) {
    failed_ = true;
    if (!first_failed_) first_failed_ = rank;
    if (m.signal && is_crash(*m.signal) && !first_crashed_) first_crashed_ = rank;
  } else if (m.code && interruption(*m.code)) {
    if (!interrupted_by_) interrupted_by_ = interruption(*m.code);
    if (!user_signal_) interruption_pending_ = true;
  }
}

/// A rank that was found frozen is ended by those beside it (transport/shm/fence.h): a consequence.
void Supervisor::excuse_frozen() {
  if (!report_text_) return;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& m = members_[i];
    const auto rank = static_cast<Rank>(i);
    const bool silent =
        report_rank_ == rank && report_text_->find("; silent for ") != std::string::npos;
    const bool no_answer =
        report_text_->find(fmt::format("rank {}: no answer", rank)) != std::string::npos;
    if (m.signal != SIGKILL || !(silent || no_answer)) continue;
    m.by_itself = false;
    if (first_crashed_ == rank) first_crashed_.reset();
    if (first_failed_ == rank) first_failed_.reset();
  }
}

void Supervisor::take(const Started& e) {
  Member* m = open_member(e.rank);
  if (!m) return;
  m->pid = e.pid;
  if (!std::exchange(m->is_starting, false)) return;
  const bool is_new = m->is_added && m->incarnation == kFirstOfNew;
  news_.emplace_back(RankStarted{e.rank, m->incarnation, e.pid,
                                 name(e.rank) + (is_new ? " is started" : " is started again")});
}

void Supervisor::take(const NotStarted& e, TimePoint now) {
  Member* m = open_member(e.rank);
  if (!m || !m->is_starting) return;
  m->unstarted = e.why;
  note_end(e.rank, now);
}

void Supervisor::take(const Exited& e, TimePoint now) {
  Member* m = open_member(e.rank);
  if (!m) return;
  m->code = e.code;
  note_end(e.rank, now);
}

void Supervisor::take(const Signalled& e, TimePoint now) {
  Member* m = open_member(e.rank);
  if (!m) return;
  m->signal = e.signal;
  m->why = e.why;
  note_end(e.rank, now);
}

void Supervisor::take(const HostLost& e, TimePoint now) {
  bool any = false;
  closed_hosts_.push_back(e.cross_rank);
  for (Member& m : members_) {
    if (m.place.cross_rank != e.cross_rank) continue;
    m.returns_at.reset();
    if (m.gone) continue;
    m.gone = m.lost = true;
    m.by_itself = false;
    if (is_dispensable(m, now)) {
      news_.emplace_back(RankLost{name(static_cast<Rank>(&m - members_.data())) + " " + ending(m)});
      m.excused = true;
    } else {
      any = true;
    }
  }
  // A host whose ranks have all ended may hang up; one that we are ending is no first cause.
  if (!any || phase_ == Phase::kTerminating || phase_ == Phase::kKilling) return;
  failed_ = true;
  if (!lost_host_) lost_host_ = e;
}

void Supervisor::take_user_signal(int signal, std::vector<JobAction>& actions) {
  if (signal != SIGINT && signal != SIGTERM) {
    actions.emplace_back(SignalAll{signal});
    return;
  }
  if (!user_signal_) {
    user_signal_ = signal;
    if (!failed_) interrupted_by_ = signal;
    interruption_pending_ = false;
    if (phase_ == Phase::kRunning) actions.emplace_back(SignalAll{signal});
    return;
  }
  killed_by_user_ = true;
}

bool Supervisor::all_gone() const {
  return std::ranges::all_of(members_, [](const Member& m) { return m.gone && !m.returns_at; });
}

/// Whether all ranks that may not be lost have ended. Where all may be lost, one that has ended
/// well has seen the end of the run, and rank 0 may still report it.
bool Supervisor::needed_gone() const {
  const auto is_gone = [](const Member& m) { return m.gone; };
  if (!std::ranges::all_of(members_, [](const Member& m) { return m.place.may_be_lost; })) {
    return std::ranges::all_of(members_,
                               [](const Member& m) { return m.gone || m.place.may_be_lost; });
  }
  if (std::ranges::none_of(members_, &ended_well)) return false;
  return members_.front().gone || std::all_of(members_.begin() + 1, members_.end(), is_gone);
}

// What others still do is of no use any more: the run is over.
void Supervisor::follow_needed(TimePoint now, std::vector<JobAction>& actions) {
  if (phase_ends_ == TimePoint::max()) phase_ends_ = now + options_.follow;
  if (now < phase_ends_) return;
  actions.emplace_back(SignalAll{SIGTERM});
  phase_ = Phase::kTerminating;
  phase_ends_ = now + options_.grace;
}

/// Whether waiting longer could not improve the report: its rank has spoken and ended.
bool Supervisor::explained() const {
  return report_rank_ && members_[static_cast<std::size_t>(*report_rank_)].gone;
}

void Supervisor::advance(TimePoint now, std::vector<JobAction>& actions) {
  const auto enter = [&](Phase phase, Duration length) {
    phase_ = phase;
    phase_ends_ = length == Duration::max() ? TimePoint::max() : now + length;
  };
  start_again(now, actions);
  const bool gone = all_gone();
  if (killed_by_user_ && phase_ != Phase::kKilling) {
    actions.emplace_back(SignalAll{SIGKILL});
    enter(Phase::kKilling, options_.give_up);
  }
  if (phase_ == Phase::kRunning || phase_ == Phase::kLingering) {
    if (failed_) {
      enter(Phase::kSettling, options_.settle);
    } else if (gone) {
      if (phase_ == Phase::kRunning) enter(Phase::kLingering, options_.linger);
      if (now >= phase_ends_) return finish(actions);
    } else if (interruption_pending_) {
      if (phase_ends_ == TimePoint::max()) phase_ends_ = now + options_.follow;
      if (now < phase_ends_) return;
      failed_ = late_ = true;
      enter(Phase::kSettling, Duration::zero());
    } else if (needed_gone()) {
      return follow_needed(now, actions);
    } else {
      phase_ends_ = TimePoint::max();
    }
  }
  if (phase_ == Phase::kSettling && (now >= phase_ends_ || (gone && explained()))) {
    if (gone) return finish(actions);
    actions.emplace_back(SignalAll{SIGTERM});
    enter(Phase::kTerminating, options_.grace);
  }
  if (phase_ == Phase::kTerminating) {
    if (gone) return finish(actions);
    if (now < phase_ends_) return;
    actions.emplace_back(SignalAll{SIGKILL});
    enter(Phase::kKilling, options_.give_up);
  }
  if (phase_ == Phase::kKilling && (gone || now >= phase_ends_)) finish(actions);
}

void Supervisor::finish(std::vector<JobAction>& actions) {
  actions.emplace_back(JobDone{exit_code(), report()});
  phase_ = Phase::kDone;
}

}  // namespace stormo::protocol
