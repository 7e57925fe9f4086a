#include <stormo/train/simulate/simulated_training.h>

#include <utility>

#include <stormo/train/simulate/simulated_workers.h>

namespace stormo::train {

Status check_simulated(const TrainerOptions& options) {
  using Kind = Strategy::Kind;
  const Kind kind = options.strategy.kind;
  const bool is_fixed = options.averaging.warmup_steps == 0 && !options.averaging.adapts();
  const bool is_plain =
      options.strategy.outer == parallel::OuterOptimizer{} && averages_state(options.strategy) &&
      options.strategy.state_periods.empty() && options.strategy.local_period == 0;
  if (kind == Kind::kParameterAveraging && !(is_fixed && is_plain)) {
    return invalid_argument(
        "parameter_averaging is simulated with a fixed period, and plain averages; leave out "
        "strategy.warmup_steps, max_distance, period_seconds, local_period, outer, average_state "
        "and state_periods, or choose other policies");
  }
  if (kind == Kind::kParameterAveraging || kind == Kind::kElasticAveraging) return {};
  if (options.servers.updates == server::ShardUpdates::kInPlace) {
    return invalid_argument(
        "updates in place have no order and no version, so they are neither simulated nor "
        "replayed; use strategy.updates=versions");
  }
  if (protocol::has_coordinator(options.servers.policy.kind)) {
    return invalid_argument(
        "policy portions has a coordinator, which is neither simulated nor replayed; use another "
        "policy");
  }
  if (!protocol::averages_values(options.servers.policy.kind)) return {};
  return invalid_argument(
      "policy average is simulated as parameter_averaging, and not replayed; write "
      "strategy.kind=parameter_averaging");
}

Result<SimulatedTraining> simulate_training(
    const Task& task, const data::Dataset& data, const TrainerOptions& options,
    protocol::VirtualCluster cluster,
    const std::function<void(const SimulatedTraining::Step&)>& on_step) {
  STORMO_ASSIGN_OR_RETURN(
      const auto workers,
      SimulatedWorkers::create(task, data, options, cluster.workers, cluster.steps));
  SimulatedTraining result;
  protocol::VirtualEvents events = workers->take_part(cluster);
  events.computed = [&](int w, std::int64_t step, Duration now) -> Status {
    // steps of a pool are dealt to workers in turns, as a synchronous run would
    const auto count = static_cast<std::int64_t>(cluster.workers);
    const int part = cluster.pooled ? static_cast<int>(step % count) : w;
    const Result<StepOutcome> outcome =
        workers->compute(w, part, cluster.pooled ? step / count : step);
    if (!workers->finite()) {
      result.diverged = now;
      return {};
    }
    STORMO_RETURN_IF_ERROR(outcome.status());
    if (outcome->samples == 0) return {};  // the workers before had all that was left of an epoch
    result.steps.push_back({.at = now,
                            .worker = w,
                            .samples = outcome->samples,
                            .loss = outcome->loss_sum / static_cast<double>(outcome->samples)});
    if (on_step) on_step(result.steps.back());
    return {};
  };
  events.ends = [&] { return result.diverged.has_value(); };
  STORMO_ASSIGN_OR_RETURN(result.outcome, run_virtual(cluster, workers->policy(), events));
  workers->finish();
  return result;
}

}  // namespace stormo::train
