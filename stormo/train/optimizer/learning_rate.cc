#include <stormo/train/optimizer/learning_rate.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace stormo::train {

double scaled_learning_rate(const LearningRateOptions& options, double lr,
                            std::int64_t global_batch) {
  if (options.base_batch <= 0) return lr;
  return lr * static_cast<double>(global_batch) / static_cast<double>(options.base_batch);
}

double learning_rate(const LearningRateOptions& options, double peak, std::int64_t step,
                     std::int64_t steps) {
  const std::int64_t warmup = options.warmup_steps;
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (options.kind == LearningRateOptions::Kind::kStep && options.step_size > 0) {
    return peak * std::pow(options.gamma, (step - warmup) / options.step_size);
  }
  if (options.kind != LearningRateOptions::Kind::kCosine || steps <= warmup) return peak;
  const double progress =
      std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(steps - warmup));
  return options.min_lr +
         0.5 * (peak - options.min_lr) * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace stormo::train
