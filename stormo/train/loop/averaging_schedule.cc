#include <stormo/train/loop/averaging_schedule.h>

#include <algorithm>

namespace stormo::train {
namespace {

// Batches differ, so the next distance may be longer than expected.
constexpr double kAim = 0.8;      // share of the bound
constexpr double kFastest = 2.0;  // growth of the period

}  // namespace

AveragingSchedule::AveragingSchedule(const AveragingOptions& options, int period)
    : options_(options), longest_(period) {
  record_.period = options.adapts() ? 1 : period;
}

void AveragingSchedule::note(double distance, Duration time, std::int64_t steps) {
  const auto n = static_cast<double>(++record_.averages);
  record_.mean_distance += (distance - record_.mean_distance) / n;
  record_.max_distance = std::max(record_.max_distance, distance);
  if (!options_.adapts()) return;
  double factor = kFastest;
  const auto keep = [&](double aim, double present) {
    if (aim > 0 && present > 0) factor = std::min(factor, aim / present);
  };
  keep(kAim * options_.max_distance, distance);
  keep(options_.period_seconds, std::chrono::duration<double>(time).count());
  record_.period =
      static_cast<int>(std::clamp(static_cast<double>(steps) * factor, 1.0, 1.0 * longest_));
}

}  // namespace stormo::train
