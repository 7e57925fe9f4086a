#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/operation/connector.h>
#include <stormo/comm/program/program.h>

namespace stormo::comm {

/// Checks the members of a subgroup of a group of `size` ranks: at least one, in ascending order.
/// `call`: of which they are the argument, for messages.
Status check_members(std::span<const Rank> members, int size, std::string_view call = "subgroup");
/// Checks the arguments of Communicator::group_of().
Status check_group_of(std::span<const Rank> members, const std::string& name, Rank me, int size);
/// "group 'tp'".
std::string shown_name(const std::string& name);
/// "0 1 5"; of more than eight the first and the last, and how many there are.
std::string shown_members(std::span<const Rank> members);

/// The names of a group's groups on this rank: a name belongs to one at a time. Thread-safe.
class GroupNames {
 public:
  /// The name is taken as long as the result lives.
  Result<std::shared_ptr<const void>> take(const std::string& name);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const void>> taken_;  // guarded by mutex_
};

/// A hash that ranks compare, to check that all have given the same members.
std::uint32_t hash_of_members(std::span<const Rank> members);
/// The membership of `me`, one of the members; without a name. `hosts` are those of the whole
/// group.
Membership membership_of(std::span<const Rank> members, Rank me, const HostMap& hosts);

}  // namespace stormo::comm
