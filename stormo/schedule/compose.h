#pragma once

#include <span>
#include <string>

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// A schedule to add rounds to. 1 <= ranks <= plan::kMaxRanks, 1 <= chunks <= plan::kMaxChunks, the
/// goal's root is a rank.
plan::Schedule without_rounds(std::string name, plan::Goal goal, int ranks, int chunks);

/// Where the chunks of a small schedule lie in a larger buffer: chunk c becomes the `width`
/// consecutive chunks that start at `offset + c * width`, out of `chunks`.
struct ChunkPlacement {
  int offset = 0;
  int width = 1;
  int chunks = 1;
};

/// The rounds of `a`, then those of `b`. Both must have the same ranks and chunks. Name and goal
/// are those of `a`: a composition has a goal of its own, see `with_goal`.
plan::Schedule then(plan::Schedule a, plan::Schedule b);

/// `s` run by some ranks of a larger group: its rank i is `ranks[i]` of `total_ranks`, its chunks
/// lie where `placement` says. `ranks` must be distinct and as many as s.ranks.
plan::Schedule on_group(const plan::Schedule& s, std::span<const Rank> ranks, int total_ranks,
                        const ChunkPlacement& placement);

/// All at once: round i holds the transfers of every part's round i, in the order of the parts.
/// Parts must have the same ranks and chunks, and there must be at least one. Parts of different
/// length start together.
plan::Schedule side_by_side(std::span<const plan::Schedule> parts);

/// The rounds of `s` from the last to the first, every transfer turned around and combined as `how`
/// says. What spreads values, reversed with kReduce, reduces them; what scatters, reversed with
/// kCopy, gathers. Name and goal stay, see `with_goal`.
plan::Schedule reversed(plan::Schedule s, plan::Combine how);

/// Every chunk of `s` cut into `pieces` consecutive chunks, which move together as the chunk did.
/// pieces >= 1, s.chunks * pieces <= plan::kMaxChunks.
plan::Schedule in_pieces(plan::Schedule s, int pieces);

/// `s`, a schedule that only copies, less the transfers of chunks that their receiver has already.
plan::Schedule without_repeats(plan::Schedule s);

/// `s` under a new name and with the goal that it reaches as a whole.
plan::Schedule with_goal(plan::Schedule s, std::string name, plan::Goal goal);

}  // namespace stormo::schedule
