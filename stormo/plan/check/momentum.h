#pragma once

#include <stormo/base/status.h>
#include <stormo/codec/momentum_correction.h>
#include <stormo/plan/step_plan.h>

namespace stormo::plan {

/// That ranks may encode the momentum of their gradients in this action: the one in which gradients
/// of whole replicas become averages.
Status check_momentum(const StepPlan& p, const Action& a,
                      const codec::MomentumCorrection& correction);

}  // namespace stormo::plan
