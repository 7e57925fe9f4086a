#pragma once

#include <span>
#include <vector>

namespace stormo::bench {

/// The value below which a share p of `values` lies (nearest rank); 0 when there are none.
double percentile(std::vector<double> values, double p);

inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

/// A ratio over several rounds.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

/// Of theirs[i] / ours[i]: only times of the same round are compared.
Spread ratios(std::span<const double> theirs, std::span<const double> ours);

}  // namespace stormo::bench
