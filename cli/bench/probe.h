#pragma once

#include <cstdint>

#include <bench/measure.h>
#include <stormo/comm/communicator.h>

namespace stormo::cli {

/// The time that this machine alone costs, measured at the same moment with the same cores: bare
/// barriers (a flag for each rank, looked at 200 times and then yielded for) and plain
/// loops over memory that all ranks of the host share. Up to 1 KiB: one barrier, then every rank
/// makes its own output. Beyond, between two barriers: every rank replaces its slice of all buffers
/// that get an outcome by the sum over everybody's (all_reduce of two ranks: a = b = a + b), or
/// copies its output out of its neighbour's buffer. Buffers are rewritten by their owners before
/// each iteration, and the slowest rank counts. Collective, on one host; returns the median.
Result<double> probe_memory(comm::Communicator& world, bench::Engine& engine,
                            const bench::OperationFacts& facts, std::uint64_t bytes,
                            double seconds);

}  // namespace stormo::cli
