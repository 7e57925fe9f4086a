#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::launch {

/// The address by which the ranks on `hosts` reach this machine: that of `interface` if given (a
/// list as below), else the one from which packets to the first host that resolves would leave.
/// Never a loopback address, which a host's own name often resolves to (127.0.1.1), unless every
/// host is this one.
Result<std::string> launcher_address(const std::string& interface,
                                     const std::vector<std::string>& hosts);

/// Interfaces are named differently on different hosts: of "br0,eth0", the first that this host has
/// with an address.
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

/// The name of this machine, for people.
std::string own_host_name();

/// "127.0.1.1", "::1".
bool is_loopback(std::string_view address);

}  // namespace stormo::launch
