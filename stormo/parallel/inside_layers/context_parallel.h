#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Context parallelism: `ranks` ranks of a new axis plan::kContextAxis load the same samples, and
/// each computes two chunks of their positions (tensor/context.h). All have the whole model, and
/// average their gradients. The model states which segments can compute parts of the positions
/// (SegmentShape::positions) and what they exchange (SegmentShape::keys). Apply it after
/// pipeline(), before tensor_parallel() and mirrored(). H. Liu et al., "Ring attention with
/// blockwise transformers for near-infinite context", 2023; S. Jacobs et al., "DeepSpeed Ulysses",
/// 2023.
Pass context_parallel(int ranks, plan::AttentionForm attention);

}  // namespace stormo::parallel
