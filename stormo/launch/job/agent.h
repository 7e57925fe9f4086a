#pragma once

#include <stormo/base/status.h>

namespace stormo::launch {

/// Runs the agent, the launcher's process on another host: reads a HostJob from standard input,
/// starts its ranks, and reports their output and their ends on standard output (frames.h). The end
/// of standard input ends all ranks, but for those of a job that outlives its launcher
/// (outlives_launcher()): these end only if the launcher has said so before, and have a keeper else
/// (keeper.h). Returns the exit code of the process, which is two from then on.
Result<int> run_agent();

}  // namespace stormo::launch
