#pragma once

#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/options.h>
#include <stormo/train/parameter_store.h>

namespace stormo::train {

/// The strategy that a run has by its options: a reducer or a bucket size means replicas.
/// kInvalidArgument for one that has none.
Result<Strategy> strategy_of(const TrainerOptions& options);

/// The plan of a step of `model` on the ranks of `world`.
Result<plan::StepPlan> plan_for(const Strategy& strategy, plan::ModelShape model,
                                const std::vector<NamedParameter>& parameters,
                                comm::Communicator& world);

/// What holds the module's parameters as the plan wants it; their values are equal on all ranks. A
/// collective. `world` is borrowed. Throws Error.
std::unique_ptr<ParameterStore> make_store(const plan::StepPlan& plan, comm::Communicator& world,
                                           const std::shared_ptr<torch::nn::Module>& module,
                                           const TrainerOptions& options);

}  // namespace stormo::train
