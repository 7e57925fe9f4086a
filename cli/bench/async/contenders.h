#pragma once

#include <cli/bench/async/options.h>
#include <cli/bench/async/table.h>
#include <cli/bench/field.h>
#include <cli/bench/site.h>

namespace stormo::cli {

/// The way is who is slow.
using AsyncContender = Entrant<bench::WorkerRecord, SlowWorker>;
using AsyncField = Field<bench::WorkerRecord, SlowWorker>;

/// The contenders of one model, strategies first; an opponent that cannot run is left out.
Result<AsyncField> gather_async(const BenchSite& site, const StepJob& job,
                                const BenchAsyncOptions& options, const AsyncArguments& arguments);

}  // namespace stormo::cli
