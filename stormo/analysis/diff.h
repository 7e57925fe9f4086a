#pragma once

#include <string>

#include <stormo/plan/schedule.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// The first differences, for people: lines of `-` (only in a) and `+` (only in b) with their
/// place, at most `max_lines` and a last line that counts the rest. Empty when and only when a ==
/// b.
std::string diff(const plan::Schedule& a, const plan::Schedule& b, int max_lines = 20);
std::string diff(const plan::StepPlan& a, const plan::StepPlan& b, int max_lines = 20);

}  // namespace stormo::analysis
