#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <stormo/base/clock.h>

namespace stormo::cli {

/// The loss of some samples at a time.
struct LossPoint {
  Duration at{};
  double loss = 0;  ///< mean over the samples
  double samples = 0;
};

/// By point: the mean over the samples of it and the window - 1 points before. Without points for
/// which there are not enough before, unless all are too few: then one mean over all.
std::vector<LossPoint> running_means(const std::vector<LossPoint>& points, std::size_t window);

/// The time of the first point with at most this loss.
std::optional<Duration> first_at_most(const std::vector<LossPoint>& points, double loss);

/// Means over the samples in `bins` equal parts of the time from 0 to the last point, each at the
/// end of its part; without empty parts.
std::vector<LossPoint> binned(const std::vector<LossPoint>& points, int bins);

}  // namespace stormo::cli
