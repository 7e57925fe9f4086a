#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stormo/transport/net/socket.h>

#include <cstring>
#include <memory>
#include <set>

namespace stormo::transport {
namespace {

/// Order of preference of an address, lowest first.
int preference(const sockaddr& a) {
  if (a.sa_family == AF_INET) return 0;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(a);
  return IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) ? 2 : 1;
}

/// The address without port; link-local ones keep their "%scope".
std::string host_text(const sockaddr& a) {
  SocketAddress address;
  address.length = a.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address.storage, &a, address.length);
  const Result<HostPort> parsed = parse_host_port(address.to_string());
  return parsed.ok() ? parsed->host : std::string();
}

}  // namespace

Result<std::string> interface_address(std::string_view name) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return errno_error("list of network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::set<std::string> names;
  const ifaddrs* best = nullptr;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    names.insert(i->ifa_name);
    if (name != i->ifa_name || i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (best == nullptr || preference(*i->ifa_addr) < preference(*best->ifa_addr)) best = i;
  }
  if (best != nullptr) return host_text(*best->ifa_addr);
  if (names.contains(std::string(name))) {
    return Status(Code::kNotFound, fmt::format("network interface '{}' is down or has no address; "
                                               "bring it up or choose another one",
                                               name));
  }
  return Status(Code::kNotFound, fmt::format("no network interface '{}'; this host has: {}", name,
                                             fmt::join(names, ", ")));
}

}  // namespace stormo::transport
