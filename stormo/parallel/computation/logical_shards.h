#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Cuts the global batch into `shards` logical shards, each of which is a micro-batch of the rank
/// that has it, and adds everything up over one tree of them (plan/logical_shards.h): sums have the
/// same bits for any number of ranks. Apply it to replicas, or one device, whose gradients are
/// averaged when backward is over, and before recompute(). kInvalidArgument unless there are at
/// least as many shards as ranks, and at most plan::kMaxShards; else fails as micro_batches().
Pass logical_shards(int shards);

/// Behind it: a rank may have up to `most` of the shards, because others compute nothing for some
/// steps (plan/computing_ranks.h). kInvalidArgument for fewer than a rank has in any case.
Pass shards_on_a_rank(int most);

}  // namespace stormo::parallel
