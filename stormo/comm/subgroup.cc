// Groups of some of a group's ranks: agree on who they are, then connect them like a world.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <stormo/comm/group.h>
#include <stormo/comm/members.h>

namespace stormo::comm {
Result<std::unique_ptr<Communicator>> Group::subgroup(std::span<const Rank> members, Deadline by) {
  STORMO_RETURN_IF_ERROR(check_members(members, size()));
  if (parts_.connector == nullptr) {
    return Status(Code::kInvalidArgument, "subgroup: this group cannot connect others");
  }
  STORMO_RETURN_IF_ERROR(run_barrier(OperationKind::kSubgroup, by, hash_of_members(members)));
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
