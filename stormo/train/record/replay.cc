#include <stormo/train/record/replay.h>

#include <algorithm>
#include <string>
#include <utility>

#include <stormo/server/ledger/record_times.h>
#include <stormo/train/simulate/simulated_workers.h>

namespace stormo::train {
namespace {

using server::ShardEvent;
using Kind = ShardEvent::Kind;

class Replay {
 public:
  Replay(SimulatedWorkers& workers, std::size_t count,
         std::function<void(const ReplayedStep&)> on_step)
      : workers_(workers), on_step_(std::move(on_step)), steps_(count) {}

  Status execute(int w, const ShardEvent& event) {
    const Result<std::uint64_t> commit = perform(w, event);
    if (commit.ok() && *commit == event.commit) return {};
    // where an event is missing, a shard may wait for it
    const bool waits = commit.status().code() == Code::kDeadlineExceeded;
    if (!waits) STORMO_RETURN_IF_ERROR(commit.status());
    return Status(Code::kCorrupt,
                  "worker " + std::to_string(w) + ", step " + std::to_string(event.step + 1) +
                      ": shard " + std::to_string(event.shard) +
                      " went another way than in the record; is it whole, and of this recipe?");
  }

 private:
  Result<std::uint64_t> perform(int w, const ShardEvent& event) {
    const int s = static_cast<int>(event.shard);
    switch (event.kind) {
      case Kind::kRead: return workers_.read(w, s);
      case Kind::kLeave: return workers_.leave(w, s);
      case Kind::kJoin: {
        STORMO_ASSIGN_OR_RETURN(const auto joined, workers_.shard(w, s).join());
        return joined.commit;
      }
      case Kind::kPush: break;
    }
    STORMO_RETURN_IF_ERROR(compute(w, event.step));
    STORMO_ASSIGN_OR_RETURN(const protocol::ShardState state, workers_.shard(w, s).state());
    STORMO_ASSIGN_OR_RETURN(const auto pushed, workers_.push(w, s, state.worker(w).pushes));
    return pushed.commit;
  }

  /// Unless the worker has given the gradient of this step to another shard.
  Status compute(int w, std::uint64_t step) {
    std::uint64_t& done = steps_[static_cast<std::size_t>(w)];
    if (step + 1 == done) return {};
    if (step != done) {
      return Status(Code::kCorrupt, "worker " + std::to_string(w) + " pushes step " +
                                        std::to_string(step + 1) + " after step " +
                                        std::to_string(done));
    }
    ++done;
    const auto number = static_cast<std::int64_t>(step);
    STORMO_ASSIGN_OR_RETURN(const StepOutcome outcome, workers_.compute(w, w, number));
    const auto samples = static_cast<double>(std::max<std::int64_t>(1, outcome.samples));
    if (!on_step_) return {};
    on_step_({.worker = w,
              .step = number,
              .samples = outcome.samples,
              .loss = outcome.loss_sum / samples});
    return {};
  }

  SimulatedWorkers& workers_;
  std::function<void(const ReplayedStep&)> on_step_;
  std::vector<std::uint64_t> steps_;  // computed, by worker
};

}  // namespace

Result<std::int64_t> replay(const Task& task, const data::Dataset& data,
                            const TrainerOptions& options, std::int64_t steps,
                            std::span<const std::vector<ShardEvent>> events,
                            const std::function<void(const ReplayedStep&)>& on_step) {
  if (!options.strategy.exchange_periods.every_step()) {
    return invalid_argument(
        "workers with copies of their own (fetch_every, push_every) are neither recorded nor "
        "replayed; use 1");
  }
  TrainerOptions served = options;
  served.strategy.kind = Strategy::Kind::kParameterServer;
  STORMO_ASSIGN_OR_RETURN(
      const auto workers,
      SimulatedWorkers::create(task, data, served, static_cast<int>(events.size()), steps));
  std::uint32_t shards = 0;
  for (const std::vector<ShardEvent>& of_worker : events) {
    for (const ShardEvent& e : of_worker) shards = std::max(shards, e.shard + 1);
  }
  if (static_cast<int>(shards) != workers->shards()) {
    return Status(Code::kCorrupt,
                  "the record is of another number of shards than this recipe has: " +
                      std::to_string(shards) + ", not " + std::to_string(workers->shards()) +
                      "; is it whole, and of this recipe?");
  }
  std::int64_t gradients = 0;
  Replay replay(*workers, events.size(), [&](const ReplayedStep& step) {
    ++gradients;
    if (on_step) on_step(step);
  });
  STORMO_ASSIGN_OR_RETURN(const auto order, server::recorded_order(events));
  for (const auto& [worker, event] : order) {
    STORMO_RETURN_IF_ERROR(replay.execute(worker, event));
  }
  workers->finish();
  return gradients;
}

}  // namespace stormo::train
