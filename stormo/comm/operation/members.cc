#include <stormo/comm/operation/members.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stormo::comm {

Status check_members(std::span<const Rank> members, int size) {
  if (members.empty()) return invalid_argument("subgroup: no members");
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= size) {
      return invalid_argument(
          fmt::format("subgroup: there is no rank {} in a group of {}", members[i], size));
    }
    if (i > 0 && members[i] <= members[i - 1]) {
      return invalid_argument(
          fmt::format("subgroup: members {} are not in ascending order", fmt::join(members, ", ")));
    }
  }
  return {};
}

std::uint32_t hash_of_members(std::span<const Rank> members) {
  std::uint32_t h = 2166136261u;
  for (const Rank r : members) h = (h ^ static_cast<std::uint32_t>(r)) * 16777619u;
  return h;
}

Membership membership_of(std::span<const Rank> members, Rank me, const HostMap& hosts) {
  Membership m;
  int host = -1;
  for (const Rank& r : members) {
    const int where = hosts.host[static_cast<std::size_t>(r)];
    if (where != host) m.ranks_per_host.push_back(0);
    host = where;
    if (r == me) {
      m.rank = static_cast<Rank>(&r - members.data());
      m.cross_rank = static_cast<int>(m.ranks_per_host.size()) - 1;
      m.local_rank = m.ranks_per_host.back();
    }
    ++m.ranks_per_host.back();
  }
  return m;
}

}  // namespace stormo::comm
