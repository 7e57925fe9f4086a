#pragma once

#include <stormo/base/status.h>
#include <stormo/train/loop/run_context.h>
#include <stormo/train/parameters/parameter_store.h>

namespace stormo::train {

/// At the end of a run with servers: what each of them has done, and how stale the gradients of
/// each worker were. A collective.
Status note_servers(RunContext& run, const ServedWorker& worker);

}  // namespace stormo::train
