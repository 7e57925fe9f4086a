#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Splits forward and backward of several segments into one action per segment. The collectives are
/// unchanged. It is used to measure the time of each segment.
Pass by_segment();

}  // namespace stormo::parallel
