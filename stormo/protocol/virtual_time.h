#pragma once

#include <algorithm>
#include <cstdint>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::protocol {

/// The longest time that is simulated. A sum of several is a number still.
inline constexpr Duration kMostVirtualTime = std::chrono::hours(30 * 365 * 24);

/// kInvalidArgument if `at`, since the beginning, is over kMostVirtualTime.
inline Status check_virtual_time(Duration at) {
  if (at <= kMostVirtualTime) return {};
  return invalid_argument("virtual time is over 30 years; give shorter times or fewer of them");
}

/// `time` times `factor`, but at most twice kMostVirtualTime: added to what was before, it is a
/// number that check_virtual_time() refuses.
inline Duration scaled(Duration time, double factor) {
  const auto most = static_cast<double>(kMostVirtualTime.count()) * 2;
  return Duration(
      static_cast<std::int64_t>(std::min(static_cast<double>(time.count()) * factor, most)));
}

}  // namespace stormo::protocol
