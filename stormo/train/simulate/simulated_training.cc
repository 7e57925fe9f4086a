#include <stormo/train/simulate/simulated_training.h>

#include <memory>
#include <string>
#include <utility>

#include <stormo/train/simulate/served_workers.h>

namespace stormo::train {
namespace {

using protocol::Push;
using protocol::PushDecision;

class Simulation {
 public:
  using OnStep = std::function<void(const SimulatedTraining::Step&)>;

  Simulation(ServedWorkers& workers, const protocol::VirtualCluster& cluster, const OnStep& on_step)
      : workers_(workers), cluster_(cluster), on_step_(on_step) {}

  Result<SimulatedTraining> run(const protocol::Policy& policy) {
    const protocol::VirtualEvents events{
        .read = [this](int w, int s) { return workers_.read(w, s).status(); },
        .computed = [this](int w, std::int64_t step,
                           Duration now) { return compute(w, step, now); },
        .pushed = [this](int s, const Push& push,
                         const PushDecision& decision) { return push_to(s, push, decision); },
        .left = [this](int w, int s) { return workers_.leave(w, s).status(); }};
    Result<protocol::VirtualOutcome> outcome = run_virtual(cluster_, policy, events);
    if (result_.diverged) {
      result_.outcome.time = *result_.diverged;
      for (int s = 0; s < workers_.shards(); ++s) {
        STORMO_ASSIGN_OR_RETURN(auto state, workers_.shard(0, s).state());
        result_.outcome.servers.push_back(std::move(state));
      }
    } else {
      STORMO_ASSIGN_OR_RETURN(result_.outcome, std::move(outcome));
    }
    workers_.finish();
    return std::move(result_);
  }

 private:
  Status compute(int w, std::int64_t step, Duration now) {
    // steps of a pool are dealt to workers in turns, as a synchronous run would
    const auto count = static_cast<std::int64_t>(workers_.workers());
    const int part = cluster_.pooled ? static_cast<int>(step % count) : w;
    const Result<StepOutcome> outcome =
        workers_.compute(w, part, cluster_.pooled ? step / count : step);
    if (!workers_.finite()) result_.diverged = now;
    STORMO_RETURN_IF_ERROR(outcome.status());
    if (outcome->samples == 0) return {};  // the workers before had all that was left of an epoch
    result_.steps.push_back({.at = now,
                             .worker = w,
                             .samples = outcome->samples,
                             .loss = outcome->loss_sum / static_cast<double>(outcome->samples)});
    if (on_step_) on_step_(result_.steps.back());
    return {};
  }

  Status push_to(int s, const Push& push, const PushDecision& expected) {
    STORMO_ASSIGN_OR_RETURN(const auto pushed, workers_.push(push.worker, s, push.sequence));
    if (pushed.decision == expected) return {};
    return Status(Code::kCorrupt, "shard and simulation decide differently");
  }

  ServedWorkers& workers_;
  const protocol::VirtualCluster& cluster_;
  const OnStep& on_step_;
  SimulatedTraining result_;
};

}  // namespace

Result<SimulatedTraining> simulate_training(
    const Task& task, const data::Dataset& data, const TrainerOptions& options,
    protocol::VirtualCluster cluster,
    const std::function<void(const SimulatedTraining::Step&)>& on_step) {
  STORMO_ASSIGN_OR_RETURN(
      const auto workers,
      ServedWorkers::create(task, data, options, cluster.workers, cluster.steps));
  cluster.servers = workers->shards();
  STORMO_ASSIGN_OR_RETURN(const auto policy, make_policy(options.servers.policy, cluster.workers));
  return Simulation(*workers, cluster, on_step).run(*policy);
}

}  // namespace stormo::train
