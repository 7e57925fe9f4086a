#pragma once

#include <cli/bench/servers/options.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// As run_servers_rank(), with server processes: a worker, a server, or both.
Result<bool> run_remote_servers_rank(const transport::Rendezvous& place,
                                     const BenchServersOptions& options, bool json);

}  // namespace stormo::cli
