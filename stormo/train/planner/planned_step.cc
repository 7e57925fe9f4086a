#include <stormo/train/planner/planned_step.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <stormo/optim/options.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/assigned/assigned_plan.h>
#include <stormo/plan/project.h>
#include <stormo/tensor/dtype.h>
#include <stormo/train/estimate/measure_step.h>
#include <stormo/train/estimate/step_sizes.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/reduction/overlap_trial.h>
#include <stormo/train/step/few_numbers.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/store/host_shared_parameters.h>

namespace stormo::train {
namespace {

/// Of a micro-batch of the rank that has most.
std::int64_t samples_of(const TrainerOptions& options, int parts) {
  const auto divide_up = [](std::int64_t n, std::int64_t by) { return (n + by - 1) / by; };
  if (options.logical_shards > 0) return divide_up(options.global_batch, options.logical_shards);
  return divide_up(divide_up(options.global_batch, parts), options.micro_batches);
}

}  // namespace

Result<comm::StepInput> planned_step(const TrainerOptions& options, const Task& task,
                                     const std::vector<int>& ranks_per_host, std::int64_t samples,
                                     bool can_share) {
  STORMO_ASSIGN_OR_RETURN(const Strategy strategy, strategy_of(options));
  can_share = can_share && std::ranges::all_of(trainable_parameters(*task.module),
                                               HostSharedParameters::can_hold);
  STORMO_ASSIGN_OR_RETURN(
      plan::StepPlan plan,
      parallel::plan_for(strategy, shape_of(task),
                         {.ranks_per_host = ranks_per_host, .can_share = can_share},
                         step_options_of(options, task.autocast == torch::kHalf,
                                         static_cast<int>(ranks_per_host.size()))));
  if (!options.passes.empty()) {
    STORMO_ASSIGN_OR_RETURN(plan, parallel::compose(std::move(plan), options.passes));
  }
  if (options.commits && num_stages(plan.mesh) > 1) {
    STORMO_RETURN_IF_ERROR(plan::check_peers(plan).within("elastic training"));
  }
  const int parts = data_part(plan.mesh, 0).parts;
  comm::StepInput step{.plan = std::move(plan),
                       .ranks_per_host = ranks_per_host,
                       .sizes = step_sizes_of(options),
                       .memory = memory_sizes_of(options),
                       .samples = samples > 0 ? samples : samples_of(options, parts)};
  step.sizes.samples = step.samples;
  step.memory.optimizer_numbers =
      static_cast<int>(optim::num_slots(optimizer_of(step.plan, options.optimizer)));
  if (task.autocast) step.sizes.computes_in = *tensor::dtype_of(*task.autocast);
  return step;
}

void measure_moves(comm::StepInput& step, const Task& task, const data::Dataset& dataset) {
  if (plan::num_stages(step.plan.mesh) == 1) return;
  step.sizes.outputs = output_bytes(task, dataset, step.samples);
}

void take_measured(comm::StepInput& step, const StepMeasurement& m) {
  step.measured = m.times;
  step.memory.activations = m.activations;
  step.memory.outputs = m.outputs;
  step.sizes.outputs = m.outputs;
}

Result<analysis::StepSimulation> simulated_as_trained(comm::StepModel& model,
                                                      const TrainerOptions& options,
                                                      comm::StepInput& step) {
  const bool measured = overlap_of(options.gradients).kind == Overlap::Kind::kMeasured;
  if (!measured || step.ranks_per_host.size() == 1 || !may_overlap(step.plan)) {
    return model.simulate(step, analysis::Timeline::kDrop);
  }
  std::int64_t bytes = 0;
  for (const plan::ParameterShape* p : flatten(step.plan.model)) {
    if (p->trainable) bytes += p->elements * static_cast<std::int64_t>(size_of(p->dtype));
  }
  const plan::StepPlan at_the_end = step.plan;
  comm::StepInput other = step;
  analysis::StepSimulation best{.seconds = std::numeric_limits<double>::infinity()};
  for (const Overlap& overlap : overlaps_to_try(bytes)) {
    STORMO_ASSIGN_OR_RETURN(other.plan, overlapped(at_the_end, overlap));
    STORMO_ASSIGN_OR_RETURN(analysis::StepSimulation now,
                            model.simulate(other, analysis::Timeline::kDrop));
    if (now.seconds >= best.seconds) continue;
    best = std::move(now);
    step.plan = other.plan;
  }
  return best;
}

}  // namespace stormo::train
