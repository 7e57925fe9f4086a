#include <stormo/launch/network.h>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>

#include <stormo/base/text.h>
#include <stormo/launch/host_spec.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {
namespace {

/// No packet is sent: connecting a datagram socket only asks the kernel for a route.
std::optional<std::string> source_address_towards(const std::string& host) {
  constexpr std::uint16_t kDiscardPort = 9;
  const auto addresses = transport::resolve({host, kDiscardPort});
  if (!addresses.ok()) return std::nullopt;
  for (const transport::SocketAddress& to : *addresses) {
    const transport::Descriptor probe(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe.valid() ||
        ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0)
      continue;
    std::string from = transport::local_host_of(probe.get());
    if (!from.empty() && !is_loopback(from)) return from;
  }
  return std::nullopt;
}

std::string listed(const std::vector<InterfaceAddress>& interfaces) {
  std::string text;
  for (const InterfaceAddress& i : interfaces)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", i.name, i.address);
  return text.empty() ? "none but loopback" : text;
}

}  // namespace

std::string own_host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<InterfaceAddress> out;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (i->ifa_addr->sa_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
      ::inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
      ::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
    } else {
      continue;
    }
    out.push_back({i->ifa_name, text.data(), (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return out;
}

std::string only_interface() {
  std::vector<InterfaceAddress> choice = interface_addresses();
  std::erase_if(choice, [](const InterfaceAddress& i) { return i.loopback; });
  const bool one =
      !choice.empty() && std::all_of(choice.begin(), choice.end(), [&](const InterfaceAddress& i) {
        return i.name == choice.front().name;
      });
  return one ? choice.front().name : std::string();
}

Result<std::string> choose_interface(std::string_view names) {
  Status problem = invalid_argument("the list of network interfaces is empty");
  for (const std::string_view name : split(names, ',')) {
    const auto address = transport::interface_address(name);
    if (address.ok()) return std::string(name);
    problem = address.status();
  }
  return problem;
}

Result<std::string> launcher_address(const std::string& interface,
                                     const std::vector<std::string>& hosts) {
  const bool ranks_here = std::any_of(hosts.begin(), hosts.end(), is_this_host);
  const bool all_here = std::all_of(hosts.begin(), hosts.end(), is_this_host);
  if (!interface.empty()) {
    const auto chosen = choose_interface(interface);
    if (chosen.ok()) return transport::interface_address(*chosen);
    // One that only the other hosts have is theirs alone.
    if (ranks_here) return chosen.status();
  }
  if (all_here) return std::string("127.0.0.1");
  for (const std::string& host : hosts) {
    if (is_this_host(host)) continue;
    if (auto from = source_address_towards(host.substr(host.find('@') + 1))) return *from;
  }
  std::vector<InterfaceAddress> choice = interface_addresses();
  std::erase_if(choice, [](const InterfaceAddress& i) { return i.loopback; });
  std::set<std::string> names;
  for (const InterfaceAddress& i : choice) names.insert(i.name);
  if (names.size() == 1) return transport::interface_address(*names.begin());
  return invalid_argument(fmt::format(
      "none of the hosts resolves to an address, so the way to them is unknown; name the network "
      "interface of this host that reaches them with --interface; there are: {}",
      listed(choice)));
}

}  // namespace stormo::launch
