#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Sharded data parallelism (ZeRO): every rank of the new mesh axis "shard" takes its part of the
/// batch, and owns and updates one of `ranks` equal parts of every segment.
///  - stage 1: gradients are reduced to parts after the whole backward, parameters gathered after
///    the update;
///  - stage 2: as 1, but each segment's gradient as soon as it is there;
///  - stage 3: parameters exist in parts too, and are gathered before each segment's forward and
///    backward.
/// model_state_bytes() has the memory, docs/algorithms.md the traffic. Applied after
/// mirrored(hosts) it is hybrid: the all-reduce of mirrored is then one of parts. The pass fails
/// with kInvalidArgument for another stage or ranks < 1, and with kBadPlan when the mesh has
/// "shard".
Pass sharded(int stage, int ranks);

}  // namespace stormo::parallel
