#pragma once

#include <cli/bench/options.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// One rank of a measurement, joined through that engine (see cli/engine.h); rank 0 prints a line
/// per size. False when a result was wrong.
Result<bool> run_bench_rank(const transport::Rendezvous& place, const std::string& engine_name,
                            const BenchOptions& options, bool json);

}  // namespace stormo::cli
