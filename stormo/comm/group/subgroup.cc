// Groups of some of a group's ranks: agree on who they are, all ranks by an operation or the
// members alone in the Store; then connect them like a world.
#include <fmt/format.h>

#include <algorithm>

#include <stormo/comm/group/group.h>
#include <stormo/comm/operation/meeting.h>
#include <stormo/comm/operation/members.h>
#include <stormo/transport/shm/host_exchange.h>

namespace stormo::comm {
namespace {

/// Takes milliseconds. Whoever gave up earlier, at its own deadline, would make the job fail.
constexpr Duration kConnecting = std::chrono::seconds(30);

}  // namespace

/// Who is alone in a group has nobody to connect with.
Result<Connections> Group::connect(const Membership& m, Deadline by) {
  if (m.size() > 1) return parts_.connector->connect(m, by);
  STORMO_ASSIGN_OR_RETURN(transport::HostParts host, transport::lone_host(arena()));
  Connections made;
  made.host_group = std::make_unique<transport::HostGroup>(std::move(host), parts_.health);
  return made;
}

Status Group::check_can_connect(std::string_view call) const {
  if (parts_.connector != nullptr || size() == 1) return {};
  return invalid_argument(fmt::format(
      "{}: ranks that are threads on several hosts cannot connect others; use processes", call));
}

Result<std::unique_ptr<Communicator>> Group::subgroup(std::span<const Rank> members, Deadline by) {
  STORMO_RETURN_IF_ERROR(check_process());
  STORMO_RETURN_IF_ERROR(check_members(members, size()));
  STORMO_RETURN_IF_ERROR(check_can_connect("subgroup"));
  STORMO_RETURN_IF_ERROR(
      run({.kind = OperationKind::kSubgroup, .tag = hash_of_members(members)}, by));
  const int number = ++num_subgroups_;
  if (!std::ranges::binary_search(members, rank())) return std::unique_ptr<Communicator>();
  return make_group(members,
                    {.key = fmt::format("{}/{}", parts_.key, number),
                     .name = fmt::format("group {} of ranks {}", number, shown_members(members)),
                     .taken_name = nullptr},
                    by);
}

Result<std::unique_ptr<Communicator>> Group::group_of(std::span<const Rank> members,
                                                      const std::string& name, Deadline by) {
  STORMO_RETURN_IF_ERROR(check_process());
  if (finalized_) return invalid_argument("the group was left or finalized");
  Result<transport::KeyValues*> values = check_can_connect("group_of");
  if (parts_.connector != nullptr) values = &parts_.connector->values();
  GroupByName how{*this, parts_.key, names_, std::move(values)};
  if (parts_.job_watch) {
    how.has_left = [this](Rank rank) { return parts_.job_watch->has_left(world_rank(rank)); };
  }
  return meet_by_name(how, members, name, by, [&](const GroupToConnect& group) {
    return make_group(members, group, Deadline::after(kConnecting));
  });
}

/// Connects members who all know that the others are there. A failure makes the job fail.
Result<std::unique_ptr<Communicator>> Group::make_group(std::span<const Rank> members,
                                                        const GroupToConnect& group, Deadline by) {
  Membership m = membership_of(members, rank(), hosts_);
  m.name = "group " + group.key;
  const std::string whole_name =
      fmt::format("{}{}{}", parts_.name, parts_.name.empty() ? "" : "/", group.name);
  auto connected = connect(m, by);
  if (!connected.ok()) {
    fail(connected.status().within("connecting " + whole_name));
    return status();  // the first cause
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
  for (const Rank member : members) parts.world_ranks.push_back(world_rank(member));
  parts.key = group.key;
  parts.name = whole_name;
  parts.taken_name = group.taken_name;
  parts.selection = parts_.selection;
  return std::unique_ptr<Communicator>(std::make_unique<Group>(std::move(parts)));
}

}  // namespace stormo::comm
