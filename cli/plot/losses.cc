#include <cli/plot/losses.h>

#include <algorithm>

namespace stormo::cli {
namespace {

/// Mean of what lies between two sums.
LossPoint mean_between(const LossPoint& before, const LossPoint& last) {
  const double samples = last.samples - before.samples;
  return {.at = last.at,
          .loss = samples > 0 ? (last.loss - before.loss) / samples : 0,
          .samples = samples};
}

}  // namespace

std::vector<LossPoint> running_means(const std::vector<LossPoint>& points, std::size_t window) {
  if (points.empty()) return {};
  window = std::clamp<std::size_t>(window, 1, points.size());
  std::vector<LossPoint> sums = {{}};  // here `loss` is the sum over all samples before
  for (const LossPoint& p : points) {
    sums.push_back({.at = p.at,
                    .loss = sums.back().loss + p.loss * p.samples,
                    .samples = sums.back().samples + p.samples});
  }
  std::vector<LossPoint> means;
  for (std::size_t i = window; i < sums.size(); ++i) {
    means.push_back(mean_between(sums[i - window], sums[i]));
  }
  return means;
}

std::optional<Duration> first_at_most(const std::vector<LossPoint>& points, double loss) {
  const auto first =
      std::ranges::find_if(points, [loss](const LossPoint& p) { return p.loss <= loss; });
  return first == points.end() ? std::nullopt : std::optional(first->at);
}

std::vector<LossPoint> binned(const std::vector<LossPoint>& points, int bins) {
  std::vector<LossPoint> out;
  if (points.empty()) return out;
  const double width = static_cast<double>(points.back().at.count()) / bins;
  std::size_t next = 0;
  for (int bin = 1; bin <= bins; ++bin) {
    const Duration end =
        bin == bins ? points.back().at : Duration(static_cast<Duration::rep>(width * bin));
    LossPoint sum{.at = end};
    for (; next < points.size() && points[next].at <= end; ++next) {
      sum.loss += points[next].loss * points[next].samples;
      sum.samples += points[next].samples;
    }
    if (sum.samples > 0) out.push_back(mean_between({}, sum));
  }
  return out;
}

}  // namespace stormo::cli
