#pragma once

#include <cstdint>
#include <optional>

#include <stormo/base/status.h>
#include <stormo/codec/momentum_correction.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/options.h>

// What goes with codecs that send few numbers of a gradient: momentum of the ranks, and warm-up.
namespace stormo::train {

/// Of a plan whose ranks encode the momentum of their gradients.
std::optional<codec::MomentumCorrection> momentum_of(const plan::StepPlan& plan);

/// The optimizer of such a plan has no momentum; that of others is as the options say.
OptimizerOptions optimizer_of(const plan::StepPlan& plan, const OptimizerOptions& options);

/// The norm by which averages are clipped: not those of a plan whose ranks clip their terms.
double clip_norm_of(const plan::StepPlan& plan, const TrainerOptions& options);

/// That the optimizer's momentum is one that the plan's ranks can have.
Status check_momentum(const plan::StepPlan& plan, const TrainerOptions& options);

/// Where replicas average gradients, AveragingOptions::warmup_steps are the first steps, in which
/// the density falls to that of the codec. That the codec has one.
Status check_density_warmup(const TrainerOptions& options);

/// The plan of step `number`, from 1 on.
plan::StepPlan with_density_of_step(plan::StepPlan plan, std::int64_t number,
                                    std::int64_t warmup_steps);

}  // namespace stormo::train
