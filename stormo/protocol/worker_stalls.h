#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/protocol/stall.h>

namespace stormo::protocol {

/// What a worker of server processes says of itself.
struct WorkerPace {
  /// Another number: it is getting on, or its thread that waits still looks after what it waits
  /// for. 0: it says nothing of itself.
  std::uint64_t progress = 0;
  std::uint64_t steps = 0;  ///< that it has done
  bool waits = false;       ///< for other workers, or for servers
  bool finishes = false;    ///< the run is over: it only evaluates and saves
  std::string doing;        ///< "step 12"
  bool operator==(const WorkerPace&) const = default;
};

/// Finds workers that live but do not get on while others wait, also those that hang in a wait of
/// their own: a stall of a run whose workers form no group (see protocol/stall.h for those that
/// do). Times are counted by the caller, without pauses of its own process. A plain value without
/// clock and I/O.
class WorkerStalls {
 public:
  explicit WorkerStalls(StallLimits limits) : limits_(limits) {}

  /// The worker has said this.
  void note(int worker, const WorkerPace& state, Duration now);
  /// It has finished, and waits for the end of the run.
  void finish(int worker, Duration now);
  /// It is lost: nobody waits for it.
  void forget(int worker) { workers_.erase(worker); }

  struct Stall {
    int worker = 0;
    bool ends = false;           ///< the worker has to go; else this is a warning
    std::uint64_t progress = 0;  ///< where it is
    std::string text;  ///< "has made no progress for 10 s; workers 0, 2 wait; its last: step 12"
    bool operator==(const Stall&) const = default;
  };
  /// What is to be said now: of each stall one warning, and then, in every call, that it ends.
  /// Who only finishes is warned about and may take any time.
  std::vector<Stall> look(Duration now);

 private:
  struct Worker {
    WorkerPace state;
    Duration since{};        // of its last progress
    Duration waits_since{};  // if it waits
    bool is_through = false;
    bool warned = false;
  };

  StallLimits limits_;
  std::map<int, Worker> workers_;
  Duration slowest_step_{};  // between two signs of progress, after a worker's first step
};

}  // namespace stormo::protocol
