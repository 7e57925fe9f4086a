// Groups of some of a group's ranks: agree on who they are, then connect them like a world.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <stormo/comm/group/group.h>
#include <stormo/comm/operation/members.h>
#include <stormo/transport/shm/host_exchange.h>

namespace stormo::comm {

/// Who is alone in a group has nobody to connect with.
Result<Connections> Group::connect(const Membership& m, Deadline by) {
  if (m.size() > 1) return parts_.connector->connect(m, by);
  STORMO_ASSIGN_OR_RETURN(transport::HostParts host, transport::lone_host(arena()));
  Connections made;
  made.host_group = std::make_unique<transport::HostGroup>(std::move(host), parts_.health);
  return made;
}

Result<std::unique_ptr<Communicator>> Group::subgroup(std::span<const Rank> members, Deadline by) {
  STORMO_RETURN_IF_ERROR(check_process());
  STORMO_RETURN_IF_ERROR(check_members(members, size()));
  if (parts_.connector == nullptr && size() > 1) {
    return Status(Code::kInvalidArgument,
                  "subgroup: ranks that are threads on several hosts cannot connect others; use "
                  "processes");
  }
  STORMO_RETURN_IF_ERROR(
      run({.kind = OperationKind::kSubgroup, .tag = hash_of_members(members)}, by));
  const int number = ++num_subgroups_;
  const auto mine = std::find(members.begin(), members.end(), rank());
  if (mine == members.end()) return std::unique_ptr<Communicator>();
  Membership m = membership_of(members, rank(), hosts_);
  m.name = fmt::format("{}group {} of ranks {}", parts_.name.empty() ? "" : parts_.name + "/",
                       number, fmt::join(members, " "));
  auto connected = connect(m, by);
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
  parts.job_watch = parts_.job_watch;
  parts.connector = parts_.connector;
  parts.activities = parts_.activities;
  parts.name = m.name;
  parts.selection = parts_.selection;
  return std::unique_ptr<Communicator>(std::make_unique<Group>(std::move(parts)));
}

}  // namespace stormo::comm
