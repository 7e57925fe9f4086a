#pragma once

#include <cli/plan/options.h>

#include <stormo/base/status.h>

namespace stormo::cli {

/// `stormo plan simulate --lost` of a step: what it takes when peers do the work of lost ranks,
/// beside all ranks, an even share of the work for each rank that is left, and a job without the
/// pipelines that have lost a rank.
Status simulate_without(const PlanOptions& o, const StepInput& step);

}  // namespace stormo::cli
