#pragma once

#include <cli/top/job_status.h>
#include <cli/top/target.h>
#include <stormo/base/clock.h>

namespace stormo::cli {

/// Shows a job on the terminal until it ends, or the user has seen enough. `first`: what it says
/// now. Then says on standard output how it ended. Returns the exit code.
int watch(const Target& target, JobStatus first, Duration interval, bool color);

}  // namespace stormo::cli
