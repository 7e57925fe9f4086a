#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/strads/scheduler.h>

namespace stormo::protocol {

/// The longest time that is simulated.
inline constexpr Duration kMostVirtualTime = std::chrono::hours(30 * 365 * 24);
inline constexpr const char* kVirtualTimeTooLong =
    "virtual time is over 30 years; give shorter times or fewer rounds";

/// Workers of a Scheduler in virtual time. Equal values give equal runs.
struct VirtualWorkers {
  Duration compute = std::chrono::microseconds(1);   ///< of a worker for its part of a block
  double jitter = 0.1;                               ///< times (1 +- jitter), drawn for each round
  std::vector<double> slowness = {};                 ///< by worker, multiplies; missing: 1
  Duration latency = std::chrono::microseconds(10);  ///< of a message, each way
  std::uint64_t seed = 1;
};

/// What happens, in the order of virtual time. A failure ends the run.
struct RoundEvents {
  /// The worker computes its part of the round.
  std::function<Status(int worker, const ComputeRound&)> compute;
  /// All parts are there. Returns the change of each block.
  std::function<Result<std::vector<double>>(const ComputeRound&)> aggregate;
  /// The worker sets the new values of the round.
  std::function<Status(int worker, const ComputeRound&)> set;
};

struct VirtualRounds {
  Duration time{};               ///< until the last worker has set the last round
  std::vector<Duration> waited;  ///< by worker: time in which it computed nothing
  std::int64_t updates = 0;      ///< of blocks
};

/// Runs the scheduler until `rounds` rounds in total are done; it may be called again. Scheduler
/// and aggregation take no time. kInvalidArgument for an impossible cluster, and when the rounds
/// take longer than kMostVirtualTime; kCorrupt when a worker is asked to compute from other values
/// than it has.
Result<VirtualRounds> run_virtual(Scheduler& scheduler, std::int64_t rounds,
                                  const VirtualWorkers& workers, const RoundEvents& events);

}  // namespace stormo::protocol
