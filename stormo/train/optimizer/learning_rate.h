#pragma once

#include <cstdint>

#include <stormo/train/options.h>

namespace stormo::train {

/// The linear scaling rule (Goyal et al., "Accurate, large minibatch SGD", 2017): returns the rate
/// for batches of `global_batch` samples, if `lr` was chosen for batches of options.base_batch.
double scaled_learning_rate(const LearningRateOptions& options, double lr,
                            std::int64_t global_batch);

/// The learning rate of step `step` (0 = first) of a run of `steps` steps whose peak is `peak`.
/// During warm-up it rises linearly; it is peak / warmup_steps on the first step. Afterwards, by
/// kind: it is constant; or it falls along half a cosine, which would reach min_lr at the step
/// after the last one; or it is multiplied by gamma every step_size steps, counted from the end of
/// the warm-up.
double learning_rate(const LearningRateOptions& options, double peak, std::int64_t step,
                     std::int64_t steps);

}  // namespace stormo::train
