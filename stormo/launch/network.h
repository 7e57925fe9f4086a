#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::launch {

/// The address by which the ranks on `hosts` reach this machine: that of `interface` if given (a
/// list as below), else the source address of packets to the first host whose name can be resolved.
/// Not a loopback address (the host's own name often resolves to 127.0.1.1), unless every host is
/// this one.
Result<std::string> launcher_address(const std::string& interface,
                                     const std::vector<std::string>& hosts);

/// The first interface of a list such as "br0,eth0" that exists on this host and has an address. A
/// list is useful because names differ between hosts.
Result<std::string> choose_interface(std::string_view names);

/// A network interface that is up, with one of its addresses.
struct InterfaceAddress {
  std::string name;
  std::string address;
  bool loopback = false;
  bool operator==(const InterfaceAddress&) const = default;
};
/// One entry per address; link-local IPv6 is left out.
std::vector<InterfaceAddress> interface_addresses();
/// The one that is no loopback, if there is one only; else empty. Asks the kernel for all: 0.2 ms.
std::string only_interface();

/// The name of this machine, for people.
std::string own_host_name();

/// "127.0.1.1", "::1".
bool is_loopback(std::string_view address);

}  // namespace stormo::launch
