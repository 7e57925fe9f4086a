#include <stormo/train/simulate/simulated_training.h>

#include <memory>
#include <utility>

#include <stormo/train/simulate/averaged_workers.h>
#include <stormo/train/simulate/elastic_workers.h>
#include <stormo/train/simulate/served_workers.h>

namespace stormo::train {
namespace {

class Simulation {
 public:
  using OnStep = std::function<void(const SimulatedTraining::Step&)>;

  Simulation(SimulatedWorkers& workers, const protocol::VirtualCluster& cluster,
             const OnStep& on_step)
      : workers_(workers), cluster_(cluster), on_step_(on_step) {}

  Result<SimulatedTraining> run() {
    protocol::VirtualEvents events = workers_.events();
    events.computed = [this](int w, std::int64_t step, Duration now) {
      return compute(w, step, now);
    };
    events.ends = [this] { return result_.diverged.has_value(); };
    STORMO_ASSIGN_OR_RETURN(result_.outcome, run_virtual(cluster_, workers_.policy(), events));
    workers_.finish();
    return std::move(result_);
  }

 private:
  Status compute(int w, std::int64_t step, Duration now) {
    // steps of a pool are dealt to workers in turns, as a synchronous run would
    const auto count = static_cast<std::int64_t>(cluster_.workers);
    const int part = cluster_.pooled ? static_cast<int>(step % count) : w;
    const Result<StepOutcome> outcome =
        workers_.compute(w, part, cluster_.pooled ? step / count : step);
    if (!workers_.finite()) {
      result_.diverged = now;
      return {};
    }
    STORMO_RETURN_IF_ERROR(outcome.status());
    if (outcome->samples == 0) return {};  // the workers before had all that was left of an epoch
    result_.steps.push_back({.at = now,
                             .worker = w,
                             .samples = outcome->samples,
                             .loss = outcome->loss_sum / static_cast<double>(outcome->samples)});
    if (on_step_) on_step_(result_.steps.back());
    return {};
  }

  SimulatedWorkers& workers_;
  const protocol::VirtualCluster& cluster_;
  const OnStep& on_step_;
  SimulatedTraining result_;
};

template <class Workers>
Result<std::unique_ptr<SimulatedWorkers>> make(const Task& task, const data::Dataset& data,
                                               const TrainerOptions& options,
                                               const protocol::VirtualCluster& cluster) {
  STORMO_ASSIGN_OR_RETURN(std::unique_ptr<SimulatedWorkers> workers,
                          Workers::create(task, data, options, cluster.workers, cluster.steps));
  return workers;
}

Result<std::unique_ptr<SimulatedWorkers>> make_workers(const Task& task, const data::Dataset& data,
                                                       const TrainerOptions& options,
                                                       const protocol::VirtualCluster& cluster) {
  switch (options.strategy.kind) {
    case Strategy::Kind::kParameterAveraging:
      return make<AveragedWorkers>(task, data, options, cluster);
    case Strategy::Kind::kElasticAveraging:
      return make<ElasticWorkers>(task, data, options, cluster);
    default: return make<ServedWorkers>(task, data, options, cluster);
  }
}

}  // namespace

Result<SimulatedTraining> simulate_training(
    const Task& task, const data::Dataset& data, const TrainerOptions& options,
    protocol::VirtualCluster cluster,
    const std::function<void(const SimulatedTraining::Step&)>& on_step) {
  STORMO_ASSIGN_OR_RETURN(const auto workers, make_workers(task, data, options, cluster));
  workers->describe(cluster);
  return Simulation(*workers, cluster, on_step).run();
}

}  // namespace stormo::train
