#include <stormo/strads/loop.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

namespace stormo::strads {
namespace {

/// An objective that is so many times the first one says that the updates do not converge.
constexpr double kMostGrowth = 1e6;

Duration cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + Duration(now.tv_nsec);
}

/// Rounds for so many updates, of which each has `of_a_round`.
std::int64_t rounds_for(std::int64_t updates, double of_a_round) {
  const double rounds = std::ceil(static_cast<double>(updates) / of_a_round);
  return std::max<std::int64_t>(static_cast<std::int64_t>(rounds), 1);
}

double largest_round(const protocol::ScheduleOptions& schedule) {
  return static_cast<double>(std::min<std::int64_t>(schedule.round, schedule.blocks));
}

/// Rounds between two judgements, at least.
std::int64_t least_period(int depth) {
  constexpr std::int64_t kDrains = 20;  // a drain lets `depth` rounds go on without others
  return depth == 0 ? 1 : kDrains * (depth + 1);
}

/// Rounds in total after which there are `updates` updates, if further rounds are as large as those
/// done; at first, as large as a round may be. Equal on all ranks.
std::int64_t rounds_until(const RoundsRun& run, std::int64_t updates) {
  const std::int64_t done = run.scheduler().rounds_done();
  const auto made = static_cast<double>(std::max<std::int64_t>(run.updates(), 1));
  const double of_a_round =
      done > 0 ? made / static_cast<double>(done) : largest_round(run.scheduler().options());
  return done + rounds_for(updates - run.updates(), of_a_round);
}

/// kInterrupted when the run is to end.
Status go_on_to(RoundsRun& run, const LoopEvents& events, std::int64_t rounds) {
  constexpr std::int64_t kLook = 16;  // a look costs a collective
  const bool in_parts =
      events.stops && run.simulated() == nullptr && run.scheduler().options().depth == 0;
  do {
    const std::int64_t done = run.scheduler().rounds_done();
    STORMO_RETURN_IF_ERROR(run.go_on(in_parts ? std::min(done + kLook, rounds) : rounds));
    if (!events.stops) continue;
    STORMO_ASSIGN_OR_RETURN(const bool stops, events.stops());
    if (stops) return Status(Code::kInterrupted, "told to stop");
  } while (run.scheduler().rounds_done() < rounds);
  return {};
}

/// Until the next judgement.
Status go_on(RoundsRun& run, const LoopOptions& loop, const LoopEvents& events) {
  const std::int64_t done = run.scheduler().rounds_done();
  if (loop.every > 0) {  // counted from the first round, also of a run that goes on
    return go_on_to(run, events,
                    done + std::min(loop.every - done % loop.every, loop.rounds - done));
  }
  const std::int64_t least = done + least_period(run.scheduler().options().depth);
  const std::int64_t updates = run.updates() + loop.updates;
  while (run.updates() < updates && run.scheduler().rounds_done() < loop.rounds) {
    const std::int64_t next = std::max(rounds_until(run, updates), least);
    STORMO_RETURN_IF_ERROR(go_on_to(run, events, std::min(next, loop.rounds)));
  }
  return {};
}

}  // namespace

std::int64_t first_period(const LoopOptions& loop, const protocol::ScheduleOptions& schedule) {
  if (loop.every > 0) return loop.every;
  return std::max(rounds_for(loop.updates, largest_round(schedule)), least_period(schedule.depth));
}

Result<Judged> run_loop(RoundsRun& run, const LoopOptions& loop, const LoopEvents& events) {
  const RealClock clock;
  Judged judged;
  STORMO_ASSIGN_OR_RETURN(judged.now, run.judge());
  const double first = judged.now.objective;
  events.judged(judged);
  while (judged.end.empty()) {
    const TimePoint begin = clock.now();
    const Duration cpu = cpu_time();
    const Status went_on = go_on(run, loop, events);
    if (went_on.code() == Code::kInterrupted) STORMO_RETURN_IF_ERROR(events.save(/*last=*/true));
    STORMO_RETURN_IF_ERROR(went_on);
    judged.real += clock.now() - begin;
    judged.cpu += cpu_time() - cpu;
    STORMO_ASSIGN_OR_RETURN(judged.now, run.judge());
    const auto [objective, gap] = judged.now;
    // equal on all ranks, so they end together
    if (!(objective <= kMostGrowth * first)) {
      judged.end = kDiverged;
    } else if (gap && *gap <= loop.tolerance * objective) {
      judged.end = "converged";
    } else if (run.scheduler().rounds_done() == loop.rounds) {
      judged.end = "ended";
    }
    if (judged.end != kDiverged) STORMO_RETURN_IF_ERROR(events.save(!judged.end.empty()));
    events.judged(judged);
  }
  return judged;
}

}  // namespace stormo::strads
