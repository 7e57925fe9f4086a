#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// For update rules that need norms of whole parameters (LARS, LAMB): where the optimizer's state
/// is sharded, updates add the norms up over the ranks that own the other parts. Apply it after the
/// passes that shard the state.
Pass trust_ratios();

}  // namespace stormo::parallel
