#include <fmt/format.h>
#include <stormo/transport/store/store_address.h>
#include <sys/socket.h>

namespace stormo::transport {

Result<StoreEndpoint> parse_store_endpoint(std::string_view text) {
  StoreEndpoint out;
  if (text.starts_with("unix:")) {
    out.is_unix = true;
    out.unix_name = text.substr(5);
    return out;
  }
  if (text.starts_with("tcp:")) {
    STORMO_ASSIGN_OR_RETURN(out.tcp, parse_host_port(text.substr(4)));
    return out;
  }
  return invalid_argument(fmt::format(
      "'{}' is not a Store address; write unix:NAME, tcp:HOST:PORT or tcp:[IPV6]:PORT", text));
}

Result<StoreEndpoint> parse_store_address(const StoreAddress& address) {
  STORMO_ASSIGN_OR_RETURN(StoreEndpoint out, parse_store_endpoint(address.text));
  const bool complete = out.is_unix ? !out.unix_name.empty() : out.tcp.port != 0;
  if (!complete) {
    return invalid_argument(
        fmt::format("Store address '{}' lacks its {}; use the text of StoreServer::address()",
                    address.text, out.is_unix ? "name" : "port"));
  }
  return out;
}

Result<std::vector<SocketAddress>> socket_addresses(const StoreEndpoint& endpoint) {
  if (!endpoint.is_unix) return resolve(endpoint.tcp);
  STORMO_ASSIGN_OR_RETURN(const SocketAddress address, unix_address(endpoint.unix_name));
  return std::vector<SocketAddress>{address};
}

Result<std::string> source_address_to(const StoreAddress& address) {
  STORMO_ASSIGN_OR_RETURN(const StoreEndpoint store, parse_store_address(address));
  STORMO_ASSIGN_OR_RETURN(const auto addresses, socket_addresses(store));
  const SocketAddress& to = addresses.front();
  const auto* const target = reinterpret_cast<const sockaddr*>(&to.storage);
  // a datagram socket sends nothing when it is connected
  const Descriptor fd(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), target, to.length) != 0) {
    return errno_error("find the address of this host");
  }
  return local_host_of(fd.get());
}

}  // namespace stormo::transport
