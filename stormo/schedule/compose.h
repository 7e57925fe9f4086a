#pragma once

#include <span>
#include <string>

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// Where the chunks of a small schedule lie in a larger buffer: chunk c becomes the `width`
/// consecutive chunks that start at `offset + c * width`, out of `chunks`.
struct ChunkPlacement {
  int offset = 0;
  int width = 1;
  int chunks = 1;
};

/// The rounds of `a`, then those of `b`. Both must have the same ranks and chunks. Name and goal
/// are those of `a`: a composition has a goal of its own, see `with_goal`.
plan::Schedule then(plan::Schedule a, const plan::Schedule& b);

/// `s` run by some ranks of a larger group: its rank i is `ranks[i]` of `total_ranks`, its chunks
/// lie where `placement` says. `ranks` must be distinct and as many as s.ranks.
plan::Schedule on_group(const plan::Schedule& s, std::span<const Rank> ranks, int total_ranks,
                        const ChunkPlacement& placement);

/// All at once: round i holds the transfers of every part's round i, in the order of the parts.
/// Parts must have the same ranks and chunks, and there must be at least one. Parts of different
/// length start together.
plan::Schedule side_by_side(std::span<const plan::Schedule> parts);

/// `s` under a new name and with the goal that it reaches as a whole.
plan::Schedule with_goal(plan::Schedule s, std::string name, plan::Goal goal);

}  // namespace stormo::schedule
