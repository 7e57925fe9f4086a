#pragma once

#include <cstdint>
#include <span>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/operation/connector.h>
#include <stormo/comm/program/program.h>

namespace stormo::comm {

/// Checks the members of a subgroup of a group of `size` ranks: at least one, in ascending order.
Status check_members(std::span<const Rank> members, int size);
/// A hash that ranks compare, to check that all have given the same members.
std::uint32_t hash_of_members(std::span<const Rank> members);
/// The membership of `me`, one of the members; without a name. `hosts` are those of the whole
/// group.
Membership membership_of(std::span<const Rank> members, Rank me, const HostMap& hosts);

}  // namespace stormo::comm
