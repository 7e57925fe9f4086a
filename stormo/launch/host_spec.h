#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>

namespace stormo::launch {

/// One host of "-H a:2,b:4": what the remote shell calls it, and how many ranks it takes.
struct HostSlots {
  std::string name;
  int slots = 1;
  bool operator==(const HostSlots&) const = default;
};

/// "a:2,b", "localhost:2", "[fd00::2]:4". Lists everything that is wrong with it.
Result<std::vector<HostSlots>> parse_hosts(std::string_view text);

/// This machine under a name that needs no remote shell: localhost or a loopback address.
bool is_this_host(std::string_view name);

/// The ranks of one host: first_rank .. first_rank + ranks - 1.
struct HostShare {
  std::string name;
  Rank first_rank = 0;
  int ranks = 0;
  bool operator==(const HostShare&) const = default;
};

/// Fills host after host in the order written. No number takes every slot; an empty list of hosts
/// is this one with as many slots as needed. Refuses what no system can start.
Result<std::vector<HostShare>> place_ranks(std::optional<int> ranks,
                                           const std::vector<HostSlots>& hosts);

}  // namespace stormo::launch
