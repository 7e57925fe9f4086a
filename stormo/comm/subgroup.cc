// Groups of some of a group's ranks: agree on who they are, then connect them like a world.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <stormo/comm/group.h>

namespace stormo::comm {
namespace {

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

std::uint32_t hash(std::span<const Rank> members) {
  std::uint32_t h = 2166136261u;
  for (const Rank r : members) h = (h ^ static_cast<std::uint32_t>(r)) * 16777619u;
  return h;
}

/// The members as `me`, one of them, sees them.
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

}  // namespace

Result<std::unique_ptr<Communicator>> Group::subgroup(std::span<const Rank> members, Deadline by) {
  STORMO_RETURN_IF_ERROR(check_members(members, size()));
  if (parts_.connector == nullptr) {
    return Status(Code::kInvalidArgument, "subgroup: this group cannot connect others");
  }
  STORMO_RETURN_IF_ERROR(run_barrier(OperationKind::kSubgroup, by, hash(members)));
  const int number = ++num_subgroups_;
  const auto mine = std::find(members.begin(), members.end(), rank());
  if (mine == members.end()) return std::unique_ptr<Communicator>();
  Membership m = membership_of(members, rank(), hosts_);
  m.name = fmt::format("{}group {} of ranks {}", parts_.name.empty() ? "" : parts_.name + "/",
                       number, fmt::join(members, " "));
  auto connected = parts_.connector->connect(m, by);
  if (!connected.ok()) {
    Status cause = connected.status().within("connecting " + m.name);
    fail(cause);
    return cause;
  }
  Parts parts;
  parts.rank = m.rank;
  parts.ranks_per_host = m.ranks_per_host;
  parts.host = parts_.host;
  parts.health = parts_.health;
  parts.connections = std::move(*connected);
  parts.coordinator = parts_.coordinator;
  parts.connector = parts_.connector;
  parts.activities = parts_.activities;
  parts.name = m.name;
  parts.selection = parts_.selection;
  return std::unique_ptr<Communicator>(std::make_unique<Group>(std::move(parts)));
}

}  // namespace stormo::comm
