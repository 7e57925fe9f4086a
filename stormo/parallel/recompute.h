#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Keeps few activations, and computes the others again when backward gets there: about 2 sqrt(n)
/// segments' in place of those of all n, for one more forward of all but the last ones. Forward and
/// backward that a plan has in one piece are cut into groups of about sqrt(n) segments. After
/// passes that reduce gradients, which would reduce them group by group. Fails with kBadPlan for a
/// plan that recomputes already. Paper: T. Chen et al., "Training deep nets with sublinear memory
/// cost", 2016.
Pass recompute();

}  // namespace stormo::parallel
