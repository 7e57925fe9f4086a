#pragma once

#include <memory>
#include <optional>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/protocol/strads/scheduler.h>
#include <stormo/strads/loop.h>

namespace stormo::strads {

/// The plan of a round: `workers` ranks with a copy of the variables each. Their number of rounds
/// from one agree to the next is that of `loop` or, where this depends on what is chosen, the first
/// one.
Result<plan::StepPlan> round_plan(plan::ModelShape variables, int workers,
                                  const protocol::ScheduleOptions& schedule,
                                  const LoopOptions& loop);

/// A run of such rounds, from the first one or from `state` on. `simulated`: see RoundsRun::make().
Result<RoundsRun> begin_rounds(Workers workers, const protocol::ScheduleOptions& schedule,
                               const std::shared_ptr<const protocol::Conflicts>& conflicts,
                               const LoopOptions& loop,
                               std::optional<protocol::VirtualWorkers> simulated,
                               const protocol::ScheduleState* state = nullptr);

/// OK for a plan that so many workers can execute whose scheduler has `depth` rounds in flight
/// besides the oldest one; else kBadPlan.
Status check_round_plan(const plan::StepPlan& plan, int workers, int depth);

}  // namespace stormo::strads
