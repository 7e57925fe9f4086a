#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo {

/// "8 B", "64 KiB", "1.5 MiB".
std::string format_bytes(std::uint64_t bytes);
/// "0.4 us", "12.3 ms", "2 min 5 s".
std::string format_duration(Duration d);
/// "4096", "64K", "64KiB", "1M", "2GiB" (binary multiples).
Result<std::uint64_t> parse_bytes(std::string_view text);
/// "250ms", "5s", "2min".
Result<Duration> parse_duration(std::string_view text);
/// The candidate closest to `word` by edit distance, if close enough to suggest; else empty.
template <class Range>
std::string_view nearest_match(std::string_view word, const Range& candidates);
/// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours count one
/// each.
int edit_distance(std::string_view a, std::string_view b);

template <class Range>
std::string_view nearest_match(std::string_view word, const Range& candidates) {
  std::string_view best;
  int best_distance = 1 + static_cast<int>(word.size()) / 2;
  for (const auto& c : candidates) {
    const int d = edit_distance(word, c);
    if (d < best_distance) {
      best_distance = d;
      best = c;
    }
  }
  return best;
}

}  // namespace stormo
