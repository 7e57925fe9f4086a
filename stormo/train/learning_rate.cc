#include <stormo/train/learning_rate.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace stormo::train {

double learning_rate(const LearningRateOptions& options, double peak, std::int64_t step,
                     std::int64_t steps) {
  const std::int64_t warmup = options.warmup_steps;
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (options.kind == LearningRateOptions::Kind::kConstant || steps <= warmup) return peak;
  const double progress =
      std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(steps - warmup));
  return options.min_lr +
         0.5 * (peak - options.min_lr) * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace stormo::train
