#pragma once

namespace stormo::train {

/// Keys of a recipe that are "auto": ranks choose their values before the first step
/// (planner/traffic.h).
struct OpenKeys {
  bool compression = false;  ///< strategy.compression; meanwhile it is none
  bool period = false;       ///< strategy.period; meanwhile it is kLongestPeriod
  bool any() const { return compression || period; }
  bool operator==(const OpenKeys&) const = default;
};

/// The longest period that ranks choose.
inline constexpr int kLongestPeriod = 512;

}  // namespace stormo::train
