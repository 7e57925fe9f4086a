#pragma once

#include <cstdint>

#include <stormo/train/options.h>

namespace stormo::train {

/// The linear scaling rule (Goyal et al., "Accurate, large minibatch SGD", 2017): a rate chosen for
/// batches of options.base_batch samples, for the `global_batch` of ranks * batch that the run has.
double scaled_learning_rate(const LearningRateOptions& options, double lr,
                            std::int64_t global_batch);

/// The learning rate of step `step` (0 = first) of a run of `steps` steps whose peak is `peak`.
/// During warm-up it rises linearly, peak / warmup_steps on the first step. Afterwards it stays; or
/// falls along half a cosine to min_lr, which the step after the last one would reach; or is
/// multiplied by gamma every step_size steps, counted from the end of the warm-up.
double learning_rate(const LearningRateOptions& options, double peak, std::int64_t step,
                     std::int64_t steps);

}  // namespace stormo::train
