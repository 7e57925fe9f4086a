#pragma once

#include <cstdint>
#include <span>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/operation/connector.h>
#include <stormo/comm/program/program.h>

namespace stormo::comm {

/// Whether these can be the members of a subgroup of a group of `size` ranks: some, in ascending
/// order.
Status check_members(std::span<const Rank> members, int size);
/// What ranks compare to agree on the members.
std::uint32_t hash_of_members(std::span<const Rank> members);
/// The members as `me`, one of them, sees them; without a name. `hosts` are the whole group's.
Membership membership_of(std::span<const Rank> members, Rank me, const HostMap& hosts);

}  // namespace stormo::comm
