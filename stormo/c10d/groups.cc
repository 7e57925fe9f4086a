#include <stormo/c10d/groups.h>

#include <algorithm>
#include <mutex>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/debug.h>

#include <stormo/c10d/blocking_call.h>
#include <stormo/c10d/options.h>
#include <stormo/c10d/store_bulletin.h>
#include <stormo/c10d/work.h>
#include <stormo/comm/group/group.h>
#include <stormo/comm/job/join_by_bulletin.h>
#include <stormo/comm/operation/members.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/network.h>

namespace stormo::c10d {
namespace {

/// The world of the default group of this process. It belongs to the group.
struct Current {
  std::mutex mutex;
  std::weak_ptr<comm::Communicator> world;
};

Current& current() {
  static Current one;
  return one;
}

/// The default group's world, if the members' numbers are those of its ranks.
std::shared_ptr<comm::Communicator> world_of(const GroupTerms& terms) {
  const std::lock_guard lock(current().mutex);
  std::shared_ptr<comm::Communicator> world = current().world.lock();
  const auto own = static_cast<std::size_t>(terms.rank);
  if (!world || own >= terms.global_ranks.size() || terms.global_ranks[own] != world->rank()) {
    return nullptr;
  }
  return world;
}

template <class T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) std::rethrow_exception(error_of(result.status()));
  return std::move(result).value();
}

std::shared_ptr<comm::Communicator> join_world(const GroupTerms& terms) {
  StoreBulletin bulletin(terms.store);
  const launch::EnvironmentReader environment = launch::process_environment();
  const auto is_set = [&](std::string_view name) { return environment(name).has_value(); };
  comm::WorldOptions options{value_or_throw(launch::read_settings(environment))};
  options.rank = terms.rank;
  options.size = terms.size;
  options.trust_store |= terms.trust_store;
  options.find_interface = launch::only_interface;
  if (!is_set("STORMO_JOIN_TIMEOUT")) options.join_timeout = duration_of(terms.timeout);
  // each operation has the timeout of its group, which may be longer than that of the world
  if (!is_set("STORMO_STALL_TIMEOUT")) options.stall_timeout = Duration::zero();
  if (!is_set("STORMO_STALL_WARNING") && ::c10d::debug_level() == ::c10d::DebugLevel::Off) {
    options.stall_warning = Duration::zero();
  }
  auto world = comm::join(bulletin, options);
  bulletin.rethrow_interrupt();
  return value_or_throw(std::move(world));
}

}  // namespace

GroupRanks GroupRanks::join(const GroupTerms& terms) {
  if (terms.global_ranks.empty()) {
    auto world = join_world(terms);
    const std::lock_guard lock(current().mutex);
    if (!terms.name.empty()) current().world = world;
    return of_world(std::move(world));
  }
  const auto world = world_of(terms);
  if (!world) return of_world(join_world(terms));
  const std::vector<Rank> members(terms.global_ranks.begin(), terms.global_ranks.end());
  return of_world(world).part(members, terms.name, Deadline::after(duration_of(terms.timeout)));
}

void GroupRanks::set_timeout(Duration timeout) const {
  if (auto* const group = dynamic_cast<comm::Group*>(&get())) group->set_timeout(timeout);
}

GroupRanks GroupRanks::part(const std::vector<Rank>& members, const std::string& name,
                            Deadline by) const {
  TORCH_CHECK_VALUE(std::is_sorted(members.begin(), members.end()),
                    fmt::format("stormo: a group of the ranks {}: they have to be in ascending "
                                "order (new_group sorts them; leave out sort_ranks=False)",
                                fmt::join(members, ", ")));
  // disjoint groups may have one name (new_subgroups with use_local_synchronization)
  const std::string own = fmt::format("{}/{:08x}", name, comm::hash_of_members(members));
  const auto link = std::make_shared<GroupLink>(get());
  auto made = [&] {
    const BlockingCall call(link);
    return get().group_of(members, own, by);
  }();
  link->cut();
  if (!made.ok()) check_interrupt();
  return {world_, value_or_throw(std::move(made))};
}

}  // namespace stormo::c10d
