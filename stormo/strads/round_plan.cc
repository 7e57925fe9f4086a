#include <stormo/strads/round_plan.h>

#include <algorithm>
#include <string>
#include <utility>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/replicas/choose.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/limits.h>

namespace stormo::strads {
namespace {

using plan::bad;

/// Why a round cannot do an action; null: it can.
const char* wrong_with(const plan::StepPlan& p, const plan::Action& a) {
  using enum plan::ActionKind;
  switch (a.kind) {
    case kLoad:
    case kChoose:
    case kLoss:
    case kAgree: return nullptr;
    case kForward:
    case kBackward:
      return a.range == all_segments(p.model) ? nullptr : "a program computes all at once";
    case kAllReduce:
      if (a.codec != Codec::kNone || !a.algorithm.empty()) {
        return "workers gather their parts, and add them up in their order";
      }
      [[fallthrough]];
    case kUpdate:
      return a.range == all_parameters(p.model) ? nullptr : "what is chosen goes together";
    default: return "a round has no such action";
  }
}

}  // namespace

Result<plan::StepPlan> round_plan(plan::ModelShape variables, int workers,
                                  const protocol::ScheduleOptions& schedule,
                                  const LoopOptions& loop) {
  const std::int64_t every = std::min<std::int64_t>(first_period(loop, schedule), plan::kMaxPeriod);
  return parallel::compose(parallel::one_device(std::move(variables)), parallel::mirrored(workers),
                           parallel::choose(schedule.depth, static_cast<int>(every)));
}

Result<RoundsRun> begin_rounds(Workers workers, const protocol::ScheduleOptions& schedule,
                               const std::shared_ptr<const protocol::Conflicts>& conflicts,
                               const LoopOptions& loop,
                               std::optional<protocol::VirtualWorkers> simulated,
                               const protocol::ScheduleState* state) {
  using protocol::Scheduler;
  STORMO_ASSIGN_OR_RETURN(Scheduler scheduler, state != nullptr
                                                   ? Scheduler::make(schedule, conflicts, *state)
                                                   : Scheduler::make(schedule, conflicts));
  STORMO_ASSIGN_OR_RETURN(plan::StepPlan plan,
                          round_plan(workers.first().variables(), workers.count(), schedule, loop));
  return RoundsRun::make(std::move(workers), std::move(scheduler), std::move(plan),
                         std::move(simulated));
}

Status check_round_plan(const plan::StepPlan& plan, int workers, int depth) {
  STORMO_RETURN_IF_ERROR(analysis::verify(plan));
  if (!plan.chosen || plan.mesh.size() != workers || longest_delay(plan) != depth) {
    return bad("the plan is none of rounds of " + std::to_string(workers) + " workers with " +
               std::to_string(depth) + " in flight besides the oldest one");
  }
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const char* wrong = wrong_with(plan, plan.actions[i]);
    if (wrong != nullptr) return bad(describe(plan, i) + ": " + wrong);
  }
  return {};
}

}  // namespace stormo::strads
