#pragma once

#include <chrono>

#include <stormo/base/clock.h>

namespace stormo::server {

/// A loop of a server or of a link looks at everything that it watches at least this often.
inline constexpr int kMaxPollMs = 100;
inline constexpr Duration kLongestTurn = std::chrono::milliseconds(kMaxPollMs);
/// Longer without a connection and a word, and a server counts as gone.
inline constexpr Duration kLongestApart = std::chrono::seconds(1);
/// Whoever waits for others looks this often whether they still exist.
inline constexpr Duration kLookEvery = std::chrono::milliseconds(100);
/// Who waits at the start of a run says so after this.
inline constexpr Duration kTellAfter = std::chrono::seconds(3);

}  // namespace stormo::server
