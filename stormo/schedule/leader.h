#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// All-reduce for `hosts` hosts of `ranks_per_host` ranks each, numbered host by host; the first
/// rank of a host is its leader. One chunk; leaders both send and reduce it in the same round.
/// hosts >= 1, ranks_per_host >= 1, their product <= plan::kMaxRanks.
plan::Schedule leader_all_reduce(int hosts, int ranks_per_host);

}  // namespace stormo::schedule
