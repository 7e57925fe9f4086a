#include <bench/statistics.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace stormo::bench {

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(p * static_cast<double>(values.size()));
  const auto index = static_cast<std::size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(index, values.size() - 1)];
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Spread ratios(std::span<const double> theirs, std::span<const double> ours) {
  std::vector<double> all;
  for (std::size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i)
    all.push_back(theirs[i] / std::max(ours[i], 1e-12));
  if (all.empty()) return {};
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  const double min = *least, max = *most;
  // of an even number the mean of the middle two
  std::sort(all.begin(), all.end());
  const double middle = (all[(all.size() - 1) / 2] + all[all.size() / 2]) / 2;
  return {middle, min, max};
}

}  // namespace stormo::bench
