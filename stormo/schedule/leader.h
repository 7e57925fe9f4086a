#pragma once

#include <stormo/plan/schedule.h>
#include <stormo/schedule/host_leaders.h>

namespace stormo::schedule {

/// Collectives among `hosts`, which may have different numbers of ranks, through one rank of each.
/// One chunk.

/// The first rank of a host is its leader; leaders both send and reduce in the same round.
plan::Schedule leader_all_reduce(const HostSizes& hosts);

/// The root is the leader of its host. 0 <= root < ranks.
plan::Schedule leader_broadcast(const HostSizes& hosts, Rank root);
plan::Schedule leader_reduce(const HostSizes& hosts, Rank root);

}  // namespace stormo::schedule
