#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::bench {

/// What one rank of one system measured of its training steps, after the warm-up.
struct StepRecord {
  int rank = 0;
  int host = 0;
  double p50_s = 0;  ///< of a step
  double p90_s = 0;
  int steps = 0;               ///< that were timed
  std::uint64_t pss = 0;       ///< bytes when the last backward has ended: shared pages in parts
  std::uint64_t peak_rss = 0;  ///< bytes, up to then: shared pages in full
  double first_loss = 0;       ///< of this rank, before any update
  double compared_loss = 0;    ///< after kComparedUpdates updates
  double last_loss = 0;        ///< of the last timed step
};

/// Losses after so many updates are compared between systems: early enough for roundings not to
/// have grown.
inline constexpr int kComparedUpdates = 10;

/// One line of JSON, without its end; short enough to be written by one call.
std::string to_json(const StepRecord& record);
/// The records in `text`, one per line, each perhaps after a launcher's "[rank] ", in the order of
/// ranks; a line that is none is an error.
Result<std::vector<StepRecord>> parse_step_records(std::string_view text);

}  // namespace stormo::bench
