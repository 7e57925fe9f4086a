#include <stormo/protocol/supervisor.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>
#include <map>

namespace stormo::protocol {
namespace {

constexpr int kConfiguration = 2;
constexpr int kSavedTryAgain = 75;
constexpr int kSignalBase = 128;
constexpr std::size_t npos = std::string::npos;
constexpr std::size_t kMaxListedRanks = 8;

/// Signals that another rank's orderly failure cannot cause: such a death is a first cause, even if
/// a peer that noticed it was quicker to report.
bool is_crash(int signal) {
  return signal == SIGKILL || signal == SIGSEGV || signal == SIGBUS || signal == SIGILL ||
         signal == SIGFPE;
}

/// What such a death usually comes from, and what helps; empty when the signal says nothing.
std::string_view remedy(int signal) {
  switch (signal) {
    case SIGKILL:
      return "SIGKILL comes from outside: a person, or the kernel when memory ran out (see dmesg)";
    case SIGBUS:
      return "SIGBUS: memory behind a mapping is gone. A mapped file became shorter or its disk "
             "failed, or memory for shared mappings ran out; do not change data files during a run";
    case SIGXFSZ:
      return "SIGXFSZ: a file grew beyond the limit of file sizes; raise it (ulimit -f)";
    case SIGXCPU: return "SIGXCPU: the limit of processor time is used up; raise it (ulimit -t)";
    case SIGPIPE: return "SIGPIPE: the program wrote to a pipe or socket whose reader had gone";
    default: return {};
  }
}

std::optional<int> interruption(int code) {
  if (code == kSignalBase + SIGINT || code == kSignalBase + SIGTERM) return code - kSignalBase;
  return std::nullopt;
}

/// The text without a leading "rank N:", which the report says itself, with host and process.
std::string_view without_rank_prefix(std::string_view text) {
  if (!text.starts_with("rank ")) return text;
  const std::size_t end = text.find_first_not_of("0123456789", 5);
  if (end == std::string_view::npos || !text.substr(end).starts_with(": ")) return text;
  return text.substr(end + 2);
}

/// What a rank was doing, out of the text that the Store got from it or wrote about it.
std::string_view last_activity(std::string_view text) {
  constexpr std::string_view kNote = "last reported: ";
  const std::size_t note = text.rfind(kNote);
  return note == std::string_view::npos ? without_rank_prefix(text)
                                        : text.substr(note + kNote.size());
}

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
    if (Member* m = open_member(started->rank)) m->pid = started->pid;
  } else if (const auto* exited = std::get_if<Exited>(&event)) {
    take(*exited);
  } else if (const auto* signalled = std::get_if<Signalled>(&event)) {
    take(*signalled);
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
    take(*lost);
  } else if (std::holds_alternative<AllHeard>(event)) {
    if (phase_ == Phase::kLingering) phase_ends_ = now;
  }
  actions.insert(actions.end(), losses_.begin(), losses_.end());
  losses_.clear();
  advance(now, actions);
  return actions;
}

std::optional<TimePoint> Supervisor::wakes_at() const {
  if (phase_ == Phase::kDone || phase_ends_ == TimePoint::max()) return std::nullopt;
  return phase_ends_;
}

Supervisor::Member* Supervisor::open_member(Rank rank) {
  if (!valid(rank)) return nullptr;
  Member& m = members_[static_cast<std::size_t>(rank)];
  return m.gone ? nullptr : &m;
}

bool Supervisor::is_failure(const Member& m) const {
  if (m.excused) return false;
  if (m.code) return *m.code != 0 && !interruption(*m.code);
  if (m.signal) return !(user_signal_ && (*m.signal == SIGINT || *m.signal == SIGTERM));
  return false;
}

/// Whether the run goes on without it, which has just gone.
bool Supervisor::is_dispensable(const Member& m) const {
  if (!m.place.may_be_lost || phase_ != Phase::kRunning || failed_) return false;
  const int group = m.place.stands_in;
  return group == 0 || std::ranges::any_of(members_, [group](const Member& other) {
           return other.place.stands_in == group && (!other.gone || other.code == 0);
         });
}

void Supervisor::note_end(Rank rank) {
  Member& m = members_[static_cast<std::size_t>(rank)];
  m.gone = true;
  m.by_itself = phase_ != Phase::kTerminating && phase_ != Phase::kKilling && !killed_by_user_;
  excuse_frozen();
  if (!m.by_itself) return;
  if (is_failure(m) && is_dispensable(m)) {
    m.excused = true;
    losses_.push_back({name(rank) + (m.code ? " ended with " : " ") + ending(m)});
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
    const bool silent = report_rank_ == rank && report_text_->find("; silent for ") != npos;
    const bool no_answer = report_text_->find(fmt::format("rank {}: no answer", rank)) != npos;
    if (m.signal != SIGKILL || !(silent || no_answer)) continue;
    m.by_itself = false;
    if (first_crashed_ == rank) first_crashed_.reset();
    if (first_failed_ == rank) first_failed_.reset();
  }
}

void Supervisor::take(const Exited& e) {
  Member* m = open_member(e.rank);
  if (!m) return;
  m->code = e.code;
  note_end(e.rank);
}

void Supervisor::take(const Signalled& e) {
  Member* m = open_member(e.rank);
  if (!m) return;
  m->signal = e.signal;
  m->why = e.why;
  note_end(e.rank);
}

void Supervisor::take(const HostLost& e) {
  bool any = false;
  for (Member& m : members_) {
    if (m.place.cross_rank != e.cross_rank || m.gone) continue;
    m.gone = m.lost = true;
    m.by_itself = false;
    if (is_dispensable(m)) {
      losses_.push_back({name(static_cast<Rank>(&m - members_.data())) + " " + ending(m)});
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
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.gone; });
}

/// Whether all ranks that may not be lost have ended. Where all may be lost, one that has ended
/// well has seen the end of the run, and rank 0 may still report it.
bool Supervisor::needed_gone() const {
  const auto is_gone = [](const Member& m) { return m.gone; };
  if (!std::ranges::all_of(members_, [](const Member& m) { return m.place.may_be_lost; })) {
    return std::ranges::all_of(members_,
                               [](const Member& m) { return m.gone || m.place.may_be_lost; });
  }
  if (std::ranges::none_of(members_, [](const Member& m) { return m.code == 0; })) return false;
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

int Supervisor::exit_code() const {
  if (killed_by_user_) return kSignalBase + *user_signal_;
  // Of what a rank says while it is ended: no signal of ours makes it say that it has saved. A slow
  // one may still say that nothing was begun, unless a rank has failed by itself.
  const bool saved =
      std::ranges::any_of(members_, [](const Member& m) { return m.code == kSavedTryAgain; });
  const bool refused = std::ranges::any_of(members_, [this](const Member& m) {
    return m.code == kConfiguration && (m.by_itself || !first_failed_);
  });
  // Ranks that notice each other leave after the user's signal have not failed. One that was still
  // starting dies of the signal, and others may fail because of that.
  const bool killed_one = std::ranges::any_of(members_, [this](const Member& m) {
    return user_signal_ && m.by_itself && m.signal == user_signal_;
  });
  const bool follows = (!first_failed_ || killed_one) && !first_crashed_ && !lost_host_ && !late_;
  const bool wanted = user_signal_ && interrupted_by_ && follows;
  if (failed_ && !wanted) {
    if (saved) return kSavedTryAgain;
    return refused ? kConfiguration : 1;
  }
  return interrupted_by_ ? kSignalBase + *interrupted_by_ : 0;
}

std::string Supervisor::name(Rank rank) const {
  const Member& m = members_[static_cast<std::size_t>(rank)];
  if (m.pid == 0) return fmt::format("rank {} (host {})", rank, m.place.host);
  return fmt::format("rank {} (host {}, pid {})", rank, m.place.host, m.pid);
}

std::string Supervisor::ending(const Member& m) const {
  if (m.signal) return "killed by " + signal_text(*m.signal);
  if (m.code) return fmt::format("exit status {}", *m.code);
  return m.lost ? "lost with its host" : "still running";
}

bool Supervisor::rank_0_has_said_it() const {
  const Member& m = members_.front();
  return options_.rank_0_reports && m.gone && m.by_itself && m.code.value_or(0) != 0;
}

std::string Supervisor::first_line() const {
  std::optional<Rank> crashed = first_crashed_;
  if (report_rank_ && first_crashed_) {
    const Member& m = members_[static_cast<std::size_t>(*report_rank_)];
    if (m.by_itself && m.signal && is_crash(*m.signal)) crashed = report_rank_;
  }
  if (crashed) {
    const Member& m = members_[static_cast<std::size_t>(*crashed)];
    std::string line = name(*crashed) + " " + ending(m);
    if (report_text_ && report_rank_ == crashed)
      line += fmt::format("; last reported: {}", last_activity(*report_text_));
    return line;
  }
  if (lost_host_) {
    const auto member = std::find_if(members_.begin(), members_.end(), [&](const Member& m) {
      return m.place.cross_rank == lost_host_->cross_rank;
    });
    std::string line = fmt::format("host {} lost: {}", member->place.host, lost_host_->reason);
    if (report_text_) line += fmt::format("; {}", *report_text_);
    return line;
  }
  if (report_text_) {
    if (!report_rank_) return *report_text_;
    const Member& m = members_[static_cast<std::size_t>(*report_rank_)];
    if (m.by_itself && m.code == 0 && report_text_->find(kEndedInGroup) != std::string::npos)
      return fmt::format(
          "{} ended with exit status 0 before it left the group, while others still communicate; "
          "destroy stormo::World, or call finalize(), before the program ends; last reported: {}",
          name(*report_rank_), last_activity(*report_text_));
    if (rank_0_has_said_it()) {
      return name(*report_rank_) +
             (m.gone && m.by_itself ? " ended with " + ending(m) : std::string(" failed"));
    }
    std::string line =
        fmt::format("{}: {}", name(*report_rank_), without_rank_prefix(*report_text_));
    if (m.gone && m.by_itself) line += fmt::format(" ({})", ending(m));
    return line;
  }
  if (first_failed_) {
    const Member& m = members_[static_cast<std::size_t>(*first_failed_)];
    return fmt::format("{} {}{}", name(*first_failed_), m.code ? "ended with " : "", ending(m));
  }
  if (late_)
    return fmt::format("a rank ended as interrupted by {}, but others ran on",
                       signal_text(*interrupted_by_));
  return fmt::format("interrupted by {}", signal_text(interrupted_by_.value_or(SIGTERM)));
}

std::string Supervisor::report() const {
  if (!failed_ && !interrupted_by_ && !killed_by_user_) return {};
  // all ranks have refused to begin, and rank 0 has said why
  const auto refused = [](const Member& m) { return m.gone && m.code == kConfiguration; };
  if (rank_0_has_said_it() && std::ranges::all_of(members_, refused)) return {};
  std::string text = first_line();
  if (killed_by_user_) text += "\n  killed at the second signal";
  std::size_t listed = 0;
  std::size_t unconfirmed = 0;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    if (!m.gone) ++unconfirmed;
    const Rank rank = static_cast<Rank>(i);
    if (!m.gone || !m.by_itself || !is_failure(m)) continue;
    if (rank == first_failed_ && !report_text_) continue;
    if (rank == report_rank_ && rank_0_has_said_it()) continue;
    if (++listed <= kMaxListedRanks) text += fmt::format("\n  {}: {}", name(rank), ending(m));
  }
  if (listed > kMaxListedRanks)
    text += fmt::format("\n  and {} more ranks ended with a failure", listed - kMaxListedRanks);
  if (unconfirmed > 0)
    text += fmt::format("\n  {} ranks did not confirm their end in time", unconfirmed);
  return text + remedies();
}

/// A line for each signal that ended a rank by itself and has a cause worth knowing.
std::string Supervisor::remedies() const {
  std::map<int, std::string> lines;
  for (const Member& m : members_) {
    if (!m.gone || !m.by_itself || !m.signal || !is_failure(m)) continue;
    std::string& line = lines[*m.signal];
    if (line.empty()) line = m.why.empty() ? remedy(*m.signal) : m.why;
  }
  std::string text;
  for (const auto& [signal, line] : lines)
    if (!line.empty()) text += "\n  " + line;
  return text;
}

}  // namespace stormo::protocol
