#pragma once

#include <stormo/plan/schedule.h>
#include <stormo/schedule/host_leaders.h>

namespace stormo::schedule {

/// Collectives among `hosts`, which may have different numbers of ranks. Between hosts their ranks
/// share the work: see HostLeaders. w is the number of ranks of the widest host.

/// hosts * w chunks; in each host, chunks [i * hosts, (i + 1) * hosts) are carried by local rank i
/// modulo the number of the host's ranks. For a single host: w chunks.
plan::Schedule hierarchical_all_reduce(const HostSizes& hosts);

/// The same with one order of additions for all chunks: ranks in ascending order inside their host,
/// then hosts in ascending order. So the bits of a sum depend only on ranks and hosts, not on its
/// position in the buffer. Between hosts every leader receives from those of all other hosts in
/// one round.
plan::Schedule canonical_all_reduce(const HostSizes& hosts);

/// A chunk for each rank.
plan::Schedule hierarchical_all_gather(const HostSizes& hosts);
plan::Schedule hierarchical_reduce_scatter(const HostSizes& hosts);
/// In the order of additions of canonical_all_reduce.
plan::Schedule canonical_reduce_scatter(const HostSizes& hosts);

/// w * pieces chunks; pieces >= 1 follow one another from host to host. 0 <= root < ranks.
plan::Schedule hierarchical_broadcast(const HostSizes& hosts, Rank root, int pieces = 1);
plan::Schedule hierarchical_reduce(const HostSizes& hosts, Rank root, int pieces = 1);

}  // namespace stormo::schedule
