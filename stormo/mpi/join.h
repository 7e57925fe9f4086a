#pragma once

#include <cstdint>
#include <memory>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::mpi {

struct Options {
  /// Before each collective the ranks compare what they called (MPI itself cannot, and would hang
  /// or deliver nonsense): log2(ranks) rounds of 16-byte messages, which are a barrier's worth of
  /// latency. Variable all_to_all compares its counts too: one more small all-to-all. A message is
  /// preceded by 40 bytes that say what it is.
  bool compare_calls = true;
  /// A payload of more bytes is cut into several calls of MPI, whose counts have 32 bits; equal on
  /// all ranks.
  std::int64_t bytes_per_call = std::int64_t{1} << 30;
};

/// The world of MPI as a Communicator: the site's own MPI library moves the bytes, over whatever
/// fabric it drives. Every rank of MPI_COMM_WORLD calls it, any number of times (each call makes a
/// group of its own). Blocks, without a deadline, until all have. Ranks are numbered host by host,
/// as mpirun does unless it is told otherwise.
///
/// MPI is initialised here unless the program has done it, and then finalised when the process
/// ends; kRefused when it offers less than MPI_THREAD_SERIALIZED. The process calls MPI through all
/// its groups one call at a time.
///
/// How it differs from comm::join:
///  - Waiting polls MPI: first without a pause, later after a sixteenth of the time waited so far,
///    4 ms at most, so that an idle rank costs about a hundredth of a core. MPI makes progress only
///    inside calls.
///  - Nothing watches the peers: a process that dies is mpirun's to notice, and it ends the job.
///    Failures that a rank reports, deadlines among them, reach the others when they next wait.
///  - MPI cannot cancel a collective. When one fails after its payload has begun to move, the
///    memory of its buffers must stay valid until the process ends.
///  - 16-bit floats are added in float32, but rounded after each addition, not once at the end.
///  - arena() is memory of this process alone, peer_address() null; bytes_sent() is 0 and
///  algorithm() "mpi": MPI does
///    not tell.
Result<std::unique_ptr<comm::Communicator>> join_mpi(const Options& options = {});

}  // namespace stormo::mpi
