#pragma once

#include <cstdint>

#include <stormo/train/options.h>

namespace stormo::train {

/// The learning rate of step `step` (0 = first) of a run of `steps` steps whose peak is `peak`.
/// During warm-up it rises linearly, peak / warmup_steps on the first step; afterwards it stays, or
/// falls along half a cosine to min_lr, which the step after the last one would reach.
double learning_rate(const LearningRateOptions& options, double peak, std::int64_t step,
                     std::int64_t steps);

}  // namespace stormo::train
