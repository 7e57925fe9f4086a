#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// `ranks` chunks; chunk r starts at rank r. 1 <= ranks <= plan::kMaxRanks.
plan::Schedule bruck_all_gather(int ranks);

/// ranks * ranks chunks, many of which pass through ranks that are neither their sender nor their
/// addressee. ranks >= 1, ranks * ranks <= plan::kMaxChunks.
plan::Schedule bruck_all_to_all(int ranks);

}  // namespace stormo::schedule
