// What a supervisor says of a job at its end: exit code, first cause, and the ranks that failed.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <map>

#include <stormo/protocol/supervisor.h>

namespace stormo::protocol {
namespace {

constexpr std::size_t kMaxListedRanks = 8;

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
  if (!m.unstarted.empty()) {
    return fmt::format("could not be started{}: {}", m.is_added ? "" : " again", m.unstarted);
  }
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
