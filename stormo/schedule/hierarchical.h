#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// All-reduce for `hosts` hosts of `ranks_per_host` ranks each, numbered host by host:
/// rank = host * ranks_per_host + local. hosts * ranks_per_host chunks; during the phase between
/// hosts, local rank l of every host works on chunks [l * hosts, (l + 1) * hosts).
/// hosts >= 1, ranks_per_host >= 1, their product <= plan::kMaxRanks.
plan::Schedule hierarchical_all_reduce(int hosts, int ranks_per_host);

/// The same of any parts: `reduce_scatter` and `all_gather` among the ranks of a host, with a chunk
/// for each, and `all_reduce` among hosts, cut into any number of chunks.
plan::Schedule hierarchical(const plan::Schedule& reduce_scatter, const plan::Schedule& all_reduce,
                            const plan::Schedule& all_gather);

/// `flat`, a schedule among the ranks of a host, run by each of `hosts` hosts at once on the whole
/// buffer, each of its chunks cut into `width`.
plan::Schedule inside_each_host(const plan::Schedule& flat, int hosts, int width);

}  // namespace stormo::schedule
