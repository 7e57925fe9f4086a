#pragma once

#include <string>

#include <cli/bench/async/options.h>
#include <cli/bench/step/options.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// One rank of a contender of `stormo bench step`; prints what it measured as a line of JSON.
///  "stormo"  the Trainer, as `stormo train` runs it
///  "plain"   libtorch's step without communication: every rank trains for itself
///  "arena"   the same with libtorch's large tensors in the Arena
Status run_step_rank(const StepJob& job, const std::string& contender);

/// One worker of a contender of `stormo bench async`; prints what it measured as a line of JSON.
///  "stormo"  the Trainer, as `stormo train` runs it
///  "plain"   libtorch's step without communication: every worker trains for itself
Status run_async_rank(const StepJob& job, const SlowWorker& slow, const std::string& contender);

}  // namespace stormo::cli
