#pragma once

#include <stormo/base/clock.h>
#include <stormo/comm/communicator.h>
#include <stormo/observe/trace.h>

namespace stormo::cli {

/// How far the clock of rank 0's host is ahead of `clock`, that of this host, now. Ranks of one
/// host have one clock. A collective: every other host sends some messages of 8 bytes to rank 0 and
/// gets answers, one host after the other; the fastest pair of messages counts, and half of its
/// time is the largest error.
Result<observe::ClockReading> read_clock_of_rank_0(comm::Communicator& world, const Clock& clock);

}  // namespace stormo::cli
