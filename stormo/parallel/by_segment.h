#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Forward and backward of several segments become one action for each segment. Moves nothing; an
/// execution by it shows how long each segment takes.
Pass by_segment();

}  // namespace stormo::parallel
