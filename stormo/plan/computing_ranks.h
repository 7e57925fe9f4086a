#pragma once

#include <vector>

#include <stormo/plan/logical_shards.h>

namespace stormo::plan {

/// The shards of each rank where only some ranks compute, `computes` by rank, at least one of them;
/// the others have none. Where the ranks of one half of a node compute nothing the other half has
/// all of the node's shards. So the sum over all ranks (kFixedTreeAllReduce) has the same bits as
/// if all computed, if a rank without shards adds -0, which changes no number. If all compute these
/// are shards_of(); if there are more of them than shards, some have none.
std::vector<ShardRange> shards_of_computing(int shards, const std::vector<bool>& computes);

/// The most that a rank has.
int most_of(const std::vector<ShardRange>& shards);

}  // namespace stormo::plan
