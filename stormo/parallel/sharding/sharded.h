#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

struct Sharding {
  int stage = 3;     ///< what exists in parts: 1 optimizer state, 2 gradients too, 3 all
  int ranks = 1;     ///< that share one copy; at least 1
  int prefetch = 0;  ///< so many segments are gathered ahead and reduced behind, asynchronously
  bool reshard_after_forward = true;  ///< stage 3; else segments stay whole until their backward
};

/// The mesh axis of the ranks that share one copy.
inline constexpr const char* kShardAxis = "shard";

/// Sharded data parallelism (ZeRO): every rank of the new mesh axis "shard" takes its part of the
/// batch, and owns and updates one of `ranks` equal parts of every segment. Parameters are gathered
/// before a segment's first forward, and each segment's gradients are reduced to parts after its
/// last backward.
///  - stage 1: whole parameters and gradients stay until after the update;
///  - stage 2: whole gradients go as soon as they are reduced;
///  - stage 3: whole parameters go after each forward and backward, and are gathered again.
/// model_state_bytes() has the memory, docs/algorithms.md the traffic. Applied after
/// mirrored(hosts) it is hybrid: the all-reduce of mirrored is then one of parts, and so is that of
/// context_parallel(). After tensor_parallel() parts are those of slices, after pipeline() those of
/// stages: then each micro-batch gathers again in stage 3, and a parameter that several stages read
/// is reduced by itself. The pass fails with kInvalidArgument for other numbers and after a
/// pipeline() whose steps overlap, and with kBadPlan when the mesh has "shard".
Pass sharded(const Sharding& how);

}  // namespace stormo::parallel
