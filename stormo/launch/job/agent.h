#pragma once

#include <stormo/base/status.h>

namespace stormo::launch {

/// The launcher's hand on another host: reads a HostJob from standard input, starts its ranks, and
/// tells on standard output what they write and how they end (frames.h). The end of standard input
/// ends everything. Returns the exit code of the process.
Result<int> run_agent();

}  // namespace stormo::launch
