#pragma once

#include <map>
#include <memory>
#include <vector>

#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::transport {

/// Makes options.sockets + 1 authenticated connections to each of `options.peers`, in the same
/// order on both sides. Blocks at most until `by`.
Result<std::map<Rank, std::vector<Channel>>> connect_mesh(const TcpOptions& options,
                                                          std::unique_ptr<TcpListener> listener,
                                                          Deadline by);

}  // namespace stormo::transport
