#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Recomputation (activation checkpointing): keeps few activations, and computes the others again
/// before their backward. The activations of about 2 sqrt(n) segments are in memory instead of
/// those of all n; the cost is one more forward of all segments but the last ones. A forward and
/// backward of all segments is divided into groups of about sqrt(n) segments. Apply it after passes
/// that reduce gradients, else these would reduce group by group. Fails with kBadPlan for a plan
/// that recomputes already. Paper: T. Chen et al., "Training deep nets with sublinear memory cost",
/// 2016.
Pass recompute();

}  // namespace stormo::parallel
