#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <cli/top/job_status.h>

namespace stormo::cli {

/// A window of a terminal.
struct Window {
  int columns = 100;
  int rows = 0;  ///< 0: as many as are needed
  bool color = false;
};

/// A job as lines, at most as many and as wide as the window takes: what it trains and how far it
/// is, then a row for each rank. With fewer rows than ranks, those that computed and loaded
/// longest. `note`: what else to say, such as that the job does not answer; may be empty. Pure.
std::vector<std::string> job_picture(const JobStatus& job, std::string_view address,
                                     std::string_view note, const Window& window);

}  // namespace stormo::cli
