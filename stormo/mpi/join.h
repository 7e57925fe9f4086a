#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::mpi {

struct Options {
  /// Before each collective the ranks compare their calls. MPI itself does not, and would hang or
  /// return wrong results. Cost: log2(ranks) rounds of 16-byte messages, the latency of a barrier.
  /// An all_to_all with counts also compares the counts, by one more small all-to-all. Messages are
  /// compared in any case.
  bool compare_calls = true;
  /// A larger payload is sent by several calls of MPI, because its counts have 32 bits; equal on
  /// all ranks.
  std::int64_t bytes_per_call = std::int64_t{1} << 30;
  /// The network interface by which other hosts reach rank 0's; of rank 0 alone. Empty: they reach
  /// it by the name of its host.
  std::string interface = {};
};

/// A collective: returns MPI_COMM_WORLD as a Communicator. The site's own MPI library moves the
/// data, over the network fabric that it supports. Every rank must call it; each call makes a
/// separate group. Blocks, without a deadline, until all ranks have called it. Ranks must be
/// numbered host by host, which is the default of mpirun.
///
/// Initialises MPI unless the program has done it, and then finalises it when the process ends.
/// kRefused when MPI offers less than MPI_THREAD_SERIALIZED. All groups of the process together
/// make one MPI call at a time.
///
/// How it differs from comm::join:
///  - Waits poll MPI: first without a pause, later with pauses of a sixteenth of the time waited so
///    far, at most 4 ms, so that an idle rank uses about a hundredth of a core. MPI makes progress
///    only inside calls.
///  - There are no heartbeats: mpirun must notice a dead process and end the job. Failures that a
///    rank reports, including missed deadlines, reach the others at their next wait.
///  - MPI cannot cancel a collective, nor a message that has begun to move. If the group fails in
///    the middle of a collective's payload, or of a long message whose other rank does not go on
///    within 0.2 s, the memory of its buffers must stay valid until the process ends, which then
///    does without MPI_Finalize.
///  - Rank 0 serves a Store in which the members of group_of() meet, on a port if there are several
///    hosts. If some rank does not reach it, group_of() is refused on all ranks.
///  - 16-bit floats are added in float32, but rounded after each addition, not once at the end.
///  - arena() is private memory of this process, and peer_address() is null. bytes_sent() is 0 and
///    algorithm() is "mpi", because MPI does not report them.
Result<std::unique_ptr<comm::Communicator>> join_mpi(const Options& options = {});

}  // namespace stormo::mpi
