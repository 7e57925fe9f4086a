#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>

namespace stormo::launch {

/// One host of "-H a:2,b:4": its name for the remote shell, and its number of ranks.
struct HostSlots {
  std::string name;
  int slots = 1;
  bool operator==(const HostSlots&) const = default;
};

/// Parses "a:2,b", "localhost:2", "[fd00::2]:4". The failure lists all errors.
Result<std::vector<HostSlots>> parse_hosts(std::string_view text);

/// Splits "ssh -p 22 {host}" into arguments and inserts the host. kInvalidArgument when {host} is
/// missing.
Result<std::vector<std::string>> remote_shell_arguments(std::string_view shell_template,
                                                        std::string_view host);

/// Whether the name means this machine without a remote shell: localhost or a loopback address.
bool is_this_host(std::string_view name);

/// The ranks of one host: first_rank .. first_rank + ranks - 1.
struct HostShare {
  std::string name;
  Rank first_rank = 0;
  int ranks = 0;
  bool operator==(const HostShare&) const = default;
};

/// Fills one host after the other in the given order. Without `ranks`, all slots are used. An empty
/// list means this host with as many slots as needed. kInvalidArgument for more ranks than slots,
/// than kMaxRanks, or than this host's limit of processes allows.
Result<std::vector<HostShare>> place_ranks(std::optional<int> ranks,
                                           const std::vector<HostSlots>& hosts);

}  // namespace stormo::launch
