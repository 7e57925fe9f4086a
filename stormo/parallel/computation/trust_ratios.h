#pragma once

#include <string>
#include <vector>

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// The axes whose ranks have parts of the same parameters in their optimizer state: shards, slices,
/// or both.
std::vector<std::string> owner_axes(const plan::StepPlan& plan);

/// For update rules that need norms of whole parameters (LARS, LAMB): updates add the norms up over
/// the ranks of owner_axes(). Those that have the same parameter as a whole count it once. Apply it
/// after the passes that cut the state.
Pass trust_ratios();

}  // namespace stormo::parallel
