#pragma once

#include <functional>
#include <vector>

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// The chunks that each rank holds.
using Holdings = std::vector<std::vector<plan::ChunkId>>;

/// `steps` rounds of copies. In each, every rank and its peer send each other all chunks that they
/// hold, so that the number of chunks doubles. `peer(rank, step)` pairs the ranks. It is an
/// all-gather when `steps` is log2 of the ranks and no two peers hold the same chunk. `held` has
/// one entry for each rank.
std::vector<plan::Round> swap_all(Holdings held, int steps,
                                  const std::function<Rank(Rank, int)>& peer);

}  // namespace stormo::schedule
