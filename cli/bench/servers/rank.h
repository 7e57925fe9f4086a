#pragma once

#include <cli/bench/servers/options.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// One worker of `stormo bench servers`; rank 0 prints a line per size. False when the servers lost
/// or repeated a push.
Result<bool> run_servers_rank(const transport::Rendezvous& place,
                              const BenchServersOptions& options, bool json);

/// As run_servers_rank(), with server processes: a worker, a server, or both.
Result<bool> run_remote_servers_rank(const transport::Rendezvous& place,
                                     const BenchServersOptions& options, bool json);

}  // namespace stormo::cli
