#pragma once

#include <span>
#include <string>

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// A schedule to add rounds to. 1 <= ranks <= plan::kMaxRanks, 1 <= chunks <= plan::kMaxChunks, the
/// goal's root is a rank.
plan::Schedule without_rounds(std::string name, plan::Goal goal, int ranks, int chunks);

/// Position of the chunks of a small schedule in a larger buffer of `chunks` chunks: chunk c
/// becomes the `width` consecutive chunks that start at `offset + c * width`.
struct ChunkPlacement {
  int offset = 0;
  int width = 1;
  int chunks = 1;
};

/// The rounds of `a`, then those of `b`. Both must have the same ranks and chunks. Name and goal
/// are those of `a`; set those of the composition by `with_goal`.
plan::Schedule then(plan::Schedule a, plan::Schedule b);

/// `s` executed by some ranks of a larger group: its rank i becomes `ranks[i]` of `total_ranks`,
/// and its chunks are placed by `placement`. `ranks` must be s.ranks distinct ranks.
plan::Schedule on_group(const plan::Schedule& s, std::span<const Rank> ranks, int total_ranks,
                        const ChunkPlacement& placement);

/// All parts at the same time: round i has the transfers of round i of every part, in the order of
/// the parts. Parts must have the same ranks and chunks; at least one. Parts may have different
/// numbers of rounds.
plan::Schedule side_by_side(std::span<const plan::Schedule> parts);

/// The rounds of `s` from the last to the first, with sender and receiver of every transfer
/// exchanged and `how` as its operation. A broadcast reversed with kReduce is a reduce; a scatter
/// reversed with kCopy is a gather. Name and goal are unchanged, see `with_goal`.
plan::Schedule reversed(plan::Schedule s, plan::ReceiveOp how);

/// `s` with every chunk divided into `pieces` consecutive chunks, which are sent in the same
/// rounds. pieces >= 1, s.chunks * pieces <= plan::kMaxChunks.
plan::Schedule in_pieces(plan::Schedule s, int pieces);

/// `s`, a schedule that only copies, without the transfers of chunks that the receiver already has.
plan::Schedule without_repeats(plan::Schedule s);

/// `s` under a new name and with the goal that it reaches as a whole.
plan::Schedule with_goal(plan::Schedule s, std::string name, plan::Goal goal);

}  // namespace stormo::schedule
