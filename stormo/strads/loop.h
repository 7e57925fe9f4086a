#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/strads/run.h>

namespace stormo::strads {

/// How long a program runs.
struct LoopOptions {
  std::int64_t rounds = 0;  ///< at most
  /// Rounds between two judgements, from the first round on; 0: as `updates` says.
  std::int64_t every = 0;
  /// Updates between two judgements, or somewhat more; where rounds are in flight besides the
  /// oldest one, at least so many that those drained for a judgement do not count.
  std::int64_t updates = 0;
  double tolerance = 0;  ///< ends when gap <= tolerance * objective
};

/// Rounds until the first judgement behind the first round, if rounds are as large as they may be.
std::int64_t first_period(const LoopOptions& loop, const protocol::ScheduleOptions& schedule);

/// A judgement, and the time that rounds took, without judgements.
struct Judged {
  Judgement now;
  Duration real{}, cpu{};  ///< cpu: of this process, all threads
  std::string_view end;    ///< why the run ends; empty: it goes on
};
inline constexpr std::string_view kDiverged = "diverged";

struct LoopEvents {
  /// Each judgement.
  std::function<void(const Judged& judged)> judged;
  /// Called after each judgement but the first one, unless the updates diverge. A collective.
  std::function<Status(bool last)> save = [](bool) { return Status(); };
  /// Whether to end now: then save(true) is called, and the run is kInterrupted. Asked before each
  /// judgement and, where that changes nothing (real time, depth 0), every few rounds. A
  /// collective; null: never.
  std::function<Result<bool>()> stops = nullptr;
};

/// Runs until the end, which it returns. All ranks end together.
Result<Judged> run_loop(RoundsRun& run, const LoopOptions& loop, const LoopEvents& events);

}  // namespace stormo::strads
