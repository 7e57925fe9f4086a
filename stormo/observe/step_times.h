#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace stormo::observe {

/// How long steps took: a histogram, and the sum.
struct StepTimes {
  /// Seconds: the longest time that each bucket counts.
  static constexpr std::array kBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
                                         0.025,  0.05,    0.1,    0.25,  0.5,    1.0,   2.5,
                                         5.0,    10.0,    25.0,   50.0,  100.0};
  std::array<std::uint64_t, kBounds.size() + 1> counts{};  ///< the last one: of longer times
  double seconds = 0;

  /// `steps` steps that took so long together; at least one.
  void add(double together, std::uint64_t steps) {
    const auto bound = std::ranges::lower_bound(kBounds, together / static_cast<double>(steps));
    counts[static_cast<std::size_t>(bound - kBounds.begin())] += steps;
    seconds += together;
  }
  std::uint64_t steps() const {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  }
};

}  // namespace stormo::observe
