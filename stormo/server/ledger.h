#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::server {

/// A part of the global batch of one step.
struct StepTask {
  int part = 0;            ///< the worker whose part it is; or the number of a portion
  std::uint64_t step = 0;  ///< from 0
  bool operator==(const StepTask&) const = default;
};

/// What the workers of a run share besides parameters, as one worker uses it: who does which step,
/// how far all are, and whether to stop. Every worker has a share: the steps of its own part. It
/// takes them from the front. Steps of a worker that is lost are done by others. With `by_speed`
/// a worker that has done its share also takes steps of slower workers, from the back of their
/// shares.
///
/// A step that a worker had begun when it was lost is not done again.
///
/// With portions there are no shares: any worker takes any portion of the current step (see
/// protocol/server/portions.h), portions of a worker that is lost are computed by others, and a
/// coordinator opens the next step. Not thread-safe.
class Ledger {
 public:
  virtual ~Ledger() = default;

  struct Terms {
    std::uint64_t first_step = 0;   ///< of every share
    std::uint64_t steps = 0;        ///< end of every share
    std::int64_t first_sample = 0;  ///< position in the data of the first step
    bool by_speed = false;
    std::int32_t portions = 0;  ///< of the batch of a step; 0: each worker has a share
    bool operator==(const Terms&) const = default;
  };
  /// Deals the shares. By one worker, before any other function is called.
  virtual Status deal(const Terms& terms) = 0;
  virtual Result<Terms> terms() = 0;

  /// How the worker's last task ended.
  struct Outcome {
    double loss_sum = 0;
    std::int64_t samples = 0;  ///< 0: it had none
  };
  struct Totals {
    double loss_sum = 0;
    std::int64_t samples = 0;
  };
  /// How often a worker was lost, and came back.
  struct Losses {
    std::int32_t worker = 0;
    std::uint32_t lost = 0, came_back = 0;
    bool operator==(const Losses&) const = default;
  };
  struct Turn {
    /// Empty: there is none at the moment, or no more. Others may have several left. Under policies
    /// that wait for all workers they wait for this one, too, until it calls Shard::leave(); before
    /// its next task it calls Shard::join().
    std::optional<StepTask> task;
    bool ends_share = false;  ///< the worker has no further step of its own share
    bool all_done = false;    ///< every step is done; no task will come
    int stop_signal = 0;      ///< not 0: stop() was called, and there is no task
    Totals totals;            ///< of all workers
    /// All parts of all steps before it are done, or were lost.
    std::uint64_t position = 0;
    /// Other workers that have neither left nor are lost; after stop(), of those that have come.
    int others = 0;
    /// Without a task: after this time there may be one, although nothing has changed. Zero: not.
    Duration again{};
    /// With portions: the current step, `position`.
    bool is_computed = false;         ///< all its portions are
    std::vector<Losses> losses = {};  ///< of workers that were lost, ascending
  };
  /// Notes the outcome of the worker's last task, and takes the next one. Does not wait for others.
  virtual Result<Turn> next(const Outcome& outcome) = 0;
  /// What next() would say now, without a task.
  virtual Result<Turn> look() = 0;
  /// Blocks until something has changed since the worker's last next() or look(), at most until
  /// `by`; then OK, too.
  virtual Status wait(Deadline by) = 0;

  /// The worker does no more steps, and has left all shards.
  virtual Status leave() = 0;
  /// With portions, by the coordinator: the current step is `step`. It is the next one, or the end
  /// of the steps.
  virtual Status advance(std::uint64_t step) = 0;
  /// All workers stop after the step that they are in. The first call counts. `signal`: not 0.
  virtual Status stop(int signal) = 0;
};

}  // namespace stormo::server
