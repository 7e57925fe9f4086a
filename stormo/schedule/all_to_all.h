#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// ranks * ranks chunks in one round. ranks >= 1, ranks * ranks <= plan::kMaxChunks.
plan::Schedule direct_all_to_all(int ranks);

/// The same in ranks - 1 rounds, in each of which every rank sends one chunk and receives one.
plan::Schedule pairwise_all_to_all(int ranks);

}  // namespace stormo::schedule
