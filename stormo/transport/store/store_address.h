#pragma once

#include <string>

#include <stormo/base/status.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/store/store.h>

namespace stormo::transport {

/// A parsed StoreAddress or StoreServer::Options::listen.
struct StoreEndpoint {
  bool is_unix = false;
  std::string unix_name;  ///< may be empty for a server, which then chooses one
  HostPort tcp;
};
/// "unix:NAME", "tcp:HOST:PORT", "tcp:[V6]:PORT".
Result<StoreEndpoint> parse_store_endpoint(std::string_view text);
/// The same, for connecting: name and port are required.
Result<StoreEndpoint> parse_store_address(const StoreAddress& address);

/// Addresses to try, one after the other.
Result<std::vector<SocketAddress>> socket_addresses(const StoreEndpoint& endpoint);

/// The address of this host from which a Store is reached by TCP, whether its server lives or not:
/// others reach this host by it, too.
Result<std::string> source_address_to(const StoreAddress& address);

}  // namespace stormo::transport
