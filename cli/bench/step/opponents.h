#pragma once

#include <string>
#include <vector>

#include <cli/bench/contenders.h>
#include <cli/bench/step/options.h>

namespace stormo::cli {

/// kInvalidArgument says why an opponent that is PyTorch cannot compute the steps of a job, and
/// what to change; looked at before it is started, as its own answer is a stack trace.
Status check_step_opponent(const std::string& name, const StepJob& job, int ranks);

/// What such an opponent imports.
std::vector<PythonImport> imports_of_step_opponent(const std::string& name);

}  // namespace stormo::cli
