#include <cli/strads/loop.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include <cli/plan/output.h>
#include <stormo/base/rng.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

using Json = nlohmann::ordered_json;

/// An objective that is so many times the first one says that the updates do not converge.
constexpr double kDiverged = 1e6;
constexpr std::string_view kDivergedEnd = "diverged";

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

/// Time that rounds took, without judgements.
struct Spent {
  Duration real{};
  Duration cpu{};  ///< of this process, all threads
};

Duration cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + Duration(now.tv_nsec);
}

/// Rounds in total after which there are `updates` updates, if further rounds are as large as those
/// done; at first, as large as a round may be. Equal on all ranks.
std::int64_t rounds_until(const strads::RoundsRun& run, std::int64_t updates) {
  const protocol::ScheduleOptions& options = run.scheduler().options();
  const auto done = static_cast<double>(run.scheduler().rounds_done());
  const auto made = static_cast<double>(std::max<std::int64_t>(run.updates(), 1));
  const auto most = static_cast<double>(std::min<std::int64_t>(options.round, options.blocks));
  const double of_a_round = done > 0 ? made / done : most;
  const auto missing = static_cast<double>(updates - run.updates());
  return run.scheduler().rounds_done() +
         std::max<std::int64_t>(static_cast<std::int64_t>(std::ceil(missing / of_a_round)), 1);
}

/// kInterrupted when the run is to end.
Status go_on_to(strads::RoundsRun& run, const StradsLoop& loop, std::int64_t rounds) {
  constexpr std::int64_t kLook = 16;  // a look costs a collective
  const bool in_parts =
      loop.stops && loop.simulated == nullptr && run.scheduler().options().depth == 0;
  do {
    const std::int64_t done = run.scheduler().rounds_done();
    STORMO_RETURN_IF_ERROR(run.go_on(in_parts ? std::min(done + kLook, rounds) : rounds));
    if (!loop.stops) continue;
    STORMO_ASSIGN_OR_RETURN(const bool stops, loop.stops());
    if (stops) return Status(Code::kInterrupted, "told to stop");
  } while (run.scheduler().rounds_done() < rounds);
  return {};
}

/// Until the next judgement.
Status go_on(strads::RoundsRun& run, const StradsLoop& loop) {
  const std::int64_t done = run.scheduler().rounds_done();
  if (loop.every > 0) {  // counted from the first round, also of a run that goes on
    return go_on_to(run, loop, done + std::min(loop.every - done % loop.every, loop.rounds - done));
  }
  constexpr std::int64_t kDrains = 20;  // a drain lets `depth` rounds go on without others
  const int depth = run.scheduler().options().depth;
  const std::int64_t least = done + (depth == 0 ? 1 : kDrains * (depth + 1));
  const std::int64_t updates = run.updates() + loop.updates;
  while (run.updates() < updates && run.scheduler().rounds_done() < loop.rounds) {
    const std::int64_t next = std::max(rounds_until(run, updates), least);
    STORMO_RETURN_IF_ERROR(go_on_to(run, loop, std::min(next, loop.rounds)));
  }
  return {};
}

Status go_on(strads::RoundsRun& run, const StradsLoop& loop, Spent& spent) {
  const RealClock clock;
  const TimePoint begin = clock.now();
  const Duration cpu = cpu_time();
  STORMO_RETURN_IF_ERROR(go_on(run, loop));
  spent.real += clock.now() - begin;
  spent.cpu += cpu_time() - cpu;
  return {};
}

class Reporter {
 public:
  Reporter(const strads::RoundsRun& run, const StradsLoop& loop)
      : run_(run), loop_(loop), before_(run.updates()) {
    if (!loop.speaks || loop.json) return;
    print_line(fmt::format("{:>9}  {:>11}  {:>10}  {:>16}  {:>9}", "rounds", "updates",
                           loop.simulated != nullptr ? "virtual" : "time", "objective", "gap"));
  }

  /// `last`: of the run. Of the others, people get one whenever there are a quarter more rounds.
  void row(const strads::Judgement& j, Spent spent, bool last = false) {
    if (!loop_.speaks) return;
    const std::int64_t rounds = run_.scheduler().rounds_done();
    if (!loop_.json && !last && 4 * rounds < 5 * shown_) return;
    shown_ = rounds;
    if (loop_.json) {
      print_json(json_of(j, spent));
    } else {
      const Duration shown = loop_.simulated != nullptr ? loop_.simulated->time() : spent.real;
      print_line(fmt::format("{:>9}  {:>11}  {:>10}  {:>16.10g}  {:>9}", rounds, run_.updates(),
                             format_duration(shown), j.objective,
                             j.gap ? fmt::format("{:.2g}", *j.gap) : "-"));
    }
    std::fflush(stdout);
  }

  void end(const strads::Judgement& j, Spent spent, std::string_view why, std::uint64_t hash,
           const StradsFigures& figures) const {
    if (!loop_.speaks) return;
    const double rate =
        static_cast<double>(run_.updates() - before_) / std::max(seconds(spent.real), 1e-9);
    if (loop_.json) {
      Json object = json_of(j, spent);
      object["end"] = why;
      object["workers"] = loop_.workers;
      object["updates_per_s"] = rate;
      object["order"] = fmt::format("{:016x}", run_.order_hash());
      object["values"] = fmt::format("{:016x}", hash);
      if (loop_.simulated != nullptr) object["waited"] = waited();
      for (const auto& [name, value] : figures) object[name] = value;
      print_json(object);
      return;
    }
    print_line(fmt::format(
        "\n{}: {} rounds of {:.3g} blocks, {:.3g} updates per second", why,
        run_.scheduler().rounds_done(),
        static_cast<double>(run_.updates()) /
            static_cast<double>(std::max<std::int64_t>(run_.scheduler().rounds_done(), 1)),
        rate));
    if (loop_.simulated != nullptr) {
      print_line(fmt::format("workers waited for {:.1f} % of virtual time", 100 * waited()));
    }
    for (const auto& [name, value] : figures) print_line(fmt::format("{}: {:.6g}", name, value));
  }

 private:
  Json json_of(const strads::Judgement& j, Spent spent) const {
    Json object = {{"rounds", run_.scheduler().rounds_done()},
                   {"updates", run_.updates()},
                   {"seconds", seconds(spent.real)},
                   {"cpu_s", seconds(spent.cpu)},
                   {"objective", j.objective}};
    if (j.gap) object["gap"] = *j.gap;
    if (loop_.simulated != nullptr) object["virtual_s"] = seconds(loop_.simulated->time());
    return object;
  }

  /// Mean share over the workers; 0 when no time has passed.
  double waited() const {
    const Duration time = loop_.simulated->time();
    if (time == Duration::zero()) return 0;
    const auto& all = loop_.simulated->waited();
    const double sum = std::accumulate(
        all.begin(), all.end(), 0.0, [](double before, Duration w) { return before + seconds(w); });
    return sum / (static_cast<double>(all.size()) * seconds(time));
  }

  const strads::RoundsRun& run_;
  const StradsLoop& loop_;
  std::int64_t before_;     // updates of an earlier process
  std::int64_t shown_ = 0;  // rounds at the last row
};

}  // namespace

std::uint64_t hash_of(std::span<const double> values, std::uint64_t basis) {
  return fnv1a({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, basis);
}

Result<bool> run_strads_loop(strads::RoundsRun& run, const StradsLoop& loop) {
  Reporter reporter(run, loop);
  STORMO_ASSIGN_OR_RETURN(strads::Judgement judged, run.judge());
  const double first = judged.objective;
  Spent spent;
  std::string_view why;
  while (why.empty()) {
    reporter.row(judged, spent);
    const Status went_on = go_on(run, loop, spent);
    if (went_on.code() == Code::kInterrupted) STORMO_RETURN_IF_ERROR(loop.judged(/*last=*/true));
    STORMO_RETURN_IF_ERROR(went_on);
    STORMO_ASSIGN_OR_RETURN(judged, run.judge());
    // equal on all ranks, so they end together
    if (!(judged.objective <= kDiverged * first)) {
      why = kDivergedEnd;
    } else if (judged.gap && *judged.gap <= loop.tolerance * judged.objective) {
      why = "converged";
    } else if (run.scheduler().rounds_done() == loop.rounds) {
      why = "ended";
    }
    if (why != kDivergedEnd) STORMO_RETURN_IF_ERROR(loop.judged(/*last=*/!why.empty()));
  }
  reporter.row(judged, spent, true);
  STORMO_ASSIGN_OR_RETURN(const std::uint64_t hash, loop.values_hash());
  STORMO_ASSIGN_OR_RETURN(const StradsFigures figures, loop.figures());
  reporter.end(judged, spent, why, hash, figures);
  return why != kDivergedEnd;
}

}  // namespace stormo::cli
