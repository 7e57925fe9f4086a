#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/rng.h>
#include <stormo/base/status.h>
#include <stormo/protocol/virtual_time.h>

namespace stormo::protocol {

/// Workers in virtual time. Equal values give equal times.
struct VirtualWorkers {
  Duration compute = std::chrono::microseconds(1);   ///< of a worker for its part of a block
  double jitter = 0.1;                               ///< times (1 +- jitter), drawn for each round
  std::vector<double> slowness = {};                 ///< by worker, multiplies; missing: 1
  Duration latency = std::chrono::microseconds(10);  ///< of a message, each way
  std::uint64_t seed = 1;
};

/// How long rounds of a Scheduler take: each worker is told the blocks, computes its part, sends
/// it, and is told the new values. A worker computes one round after the other; scheduler and
/// aggregation take no time. Every call is kInvalidArgument for impossible workers, and when time
/// is over kMostVirtualTime.
class VirtualRounds {
 public:
  VirtualRounds(VirtualWorkers workers, int count);

  /// No round is in flight, and all workers are free.
  Status start();
  /// A round of so many blocks begins; the oldest one ends.
  Status begin(std::size_t blocks);
  Status end();
  /// Until all workers have set the last round.
  Status finish();

  Duration time() const { return time_; }                          ///< until the last finish()
  const std::vector<Duration>& waited() const { return waited_; }  ///< by worker, of time()
  /// The part of time() that workers waited on average; 0 when no time has passed.
  double waited_share() const;

 private:
  struct Worker {
    Rng rng;
    Duration free{};  // from then on
    Duration computed{};
  };
  Duration takes(std::size_t worker, std::size_t blocks);

  VirtualWorkers options_;
  std::vector<Worker> workers_;
  std::deque<Duration> complete_;  // when the parts of each round in flight are there
  Duration now_{};                 // since start()
  Duration time_{};
  std::vector<Duration> waited_;
};

}  // namespace stormo::protocol
