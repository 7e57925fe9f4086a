#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// For update rules that need norms of whole parameters (LARS, LAMB): where the optimizer's state
/// is cut, updates add them up over the ranks that have the other parts. After the passes that cut
/// it.
Pass trust_ratios();

}  // namespace stormo::parallel
