#pragma once

#include <cstdint>

#include <bench/measure.h>
#include <stormo/comm/communicator.h>

namespace stormo::cli {

/// The time that this machine's memory alone costs, measured at the same moment with the same
/// cores: plain loops over memory that all ranks of the host share, without any waiting. Sums:
/// every rank replaces its slice of all buffers that get an outcome by the sum over everybody's
/// (all_reduce of two ranks: a = b = a + b). Other operations: every rank copies its output out of
/// its neighbour's buffer. Buffers are rewritten by their owners before each iteration, as in the
/// measurement; the time is from the first begin to the last end. Collective, on one host; returns
/// the median.
Result<double> probe_memory(comm::Communicator& world, bench::Engine& engine,
                            const bench::OperationFacts& facts, std::uint64_t bytes,
                            double seconds);

}  // namespace stormo::cli
