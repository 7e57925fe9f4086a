#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/protocol/supervisor.h>

namespace stormo::protocol {

/// A job of `ranks` on hosts a, b, ... of two ranks each, with everything it was told to do.
struct Job {
  explicit Job(int ranks, std::vector<Rank> may_be_lost = {}, std::vector<Rank> holders = {})
      : Job(places(ranks, may_be_lost, holders)) {}
  explicit Job(const std::vector<RankPlace>& at, Supervisor::Options options = {})
      : supervisor(at, options) {
    for (int r = 0; r < static_cast<int>(at.size()); ++r) tell(Started{r, 100 + r});
  }
  static std::vector<RankPlace> places(int ranks, const std::vector<Rank>& may_be_lost,
                                       const std::vector<Rank>& holders) {
    std::vector<RankPlace> out;
    for (int r = 0; r < ranks; ++r) out.push_back({r / 2, std::string(1, char('a' + r / 2))});
    for (const Rank r : may_be_lost) out[static_cast<std::size_t>(r)].may_be_lost = true;
    for (const Rank r : holders) out[static_cast<std::size_t>(r)].stands_in = 1;
    return out;
  }
  void tell(const JobEvent& event) { keep(supervisor.handle(event, clock.now())); }
  void wait(Duration d) {
    clock.advance(d);
    tell(Tick{});
  }
  /// Lets time pass as far as the supervisor asks for; false when it asks for nothing.
  bool wait_for_wish() {
    const auto at = supervisor.wakes_at();
    if (!at) return false;
    if (*at > clock.now()) clock.advance(*at - clock.now());
    tell(Tick{});
    return true;
  }
  void keep(const std::vector<JobAction>& actions) {
    for (const JobAction& a : actions) {
      if (const auto* s = std::get_if<SignalAll>(&a)) signals.push_back(s->signal);
      if (const auto* l = std::get_if<RankLost>(&a)) lost.push_back(l->text);
      if (const auto* s = std::get_if<StartRank>(&a)) starts.push_back(*s);
      if (const auto* s = std::get_if<RankStarted>(&a)) started.push_back(s->text);
      if (const auto* l = std::get_if<LeaveRank>(&a)) leaves.push_back(l->rank);
      if (const auto* l = std::get_if<RankLeft>(&a)) left.push_back(l->text);
      if (const auto* d = std::get_if<JobDone>(&a)) {
        ++times_done;
        done = *d;
      }
    }
  }
  std::string first_line() const { return done->report.substr(0, done->report.find('\n')); }

  ManualClock clock;
  Supervisor supervisor;
  std::vector<int> signals;
  std::vector<std::string> lost;
  std::vector<StartRank> starts;
  std::vector<std::string> started;
  std::vector<Rank> leaves;
  std::vector<std::string> left;
  std::optional<JobDone> done;
  int times_done = 0;
};

/// Ranks on hosts a, b, ... of two ranks each. They stand in for each other, and whoever is lost is
/// started again.
struct ElasticJob : Job {
  explicit ElasticJob(int ranks, bool replaces = true)
      : Job(places_of(ranks), {.replaces = replaces}) {}
  static std::vector<RankPlace> places_of(int ranks) {
    std::vector<RankPlace> out = places(ranks, {}, {});
    for (RankPlace& place : out) {
      place.may_be_lost = true;
      place.stands_in = 1;
    }
    return out;
  }
  /// Loses a rank, and starts it as soon as that is wanted; the time until then.
  Duration lose(Rank rank) {
    const std::size_t before = starts.size();
    const TimePoint then = clock.now();
    tell(Signalled{rank, SIGKILL});
    while (starts.size() == before && wait_for_wish()) {
    }
    const Duration waited = clock.now() - then;
    tell(Started{rank, next_pid++});
    return waited;
  }
  void finish() {
    while (!done && wait_for_wish()) {
    }
  }
  int next_pid = 4790;
};

}  // namespace stormo::protocol
