#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Splits forward and backward of several segments into one action per segment. The collectives are
/// unchanged. It is used to measure the time of each segment.
Pass by_segment();

/// Backwards in two parts, the second right behind the first; but of the first segment in one. Used
/// to measure the time of each part.
Pass in_two_parts();

}  // namespace stormo::parallel
