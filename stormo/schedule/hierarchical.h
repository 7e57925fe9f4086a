#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// All-reduce for `hosts` hosts of `ranks_per_host` ranks each, numbered host by host:
/// rank = host * ranks_per_host + local. hosts * ranks_per_host chunks; during the phase between
/// hosts, local rank l of every host works on chunks [l * hosts, (l + 1) * hosts).
/// hosts >= 1, ranks_per_host >= 1, their product <= plan::kMaxRanks.
plan::Schedule hierarchical_all_reduce(int hosts, int ranks_per_host);

}  // namespace stormo::schedule
