#pragma once

#include <map>
#include <memory>

#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::transport {

/// An authenticated connection to each of `options.peers`.
Result<std::map<Rank, Descriptor>> connect_mesh(const TcpOptions& options,
                                                std::unique_ptr<TcpListener> listener, Deadline by);

}  // namespace stormo::transport
