#pragma once

#include <string>

#include <stormo/analysis/step/step_simulate.h>
#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::cli {

/// A picture of a simulated step: two lanes for each rank, computations and communication, time
/// runs to the right. Names and lanes are those of a trace. kInvalidArgument for more than 20,000
/// boxes.
Result<std::string> svg_timeline(const plan::StepPlan& plan, const analysis::StepSimulation& s);

}  // namespace stormo::cli
