#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::bench {

/// What one process measured of training steps after the warm-up, for workers that need not wait
/// for each other.
struct WorkerRecord {
  int worker = 0;                   ///< the first one that it speaks for
  int workers = 1;                  ///< how many
  std::vector<double> times;        ///< seconds of the host's clock, one per step, ascending
  std::vector<double> losses = {};  ///< of these steps; empty: not known
  double first_loss = 0;            ///< mean over the first pass over all batches
  double last_loss = 0;             ///< over the last one
};

/// One line of JSON, without its end.
std::string to_json(const WorkerRecord& record);
/// The records in `text`, one per line, in the order of workers; a line that is none is an error.
Result<std::vector<WorkerRecord>> parse_worker_records(std::string_view text);

/// Steps per second of the processes for whose worker `counts` is true, while all train: from the
/// time when the last has begun to the time when the first has ended. 0 if there is no such time.
double steps_per_second(std::span<const WorkerRecord> records,
                        const std::function<bool(int worker)>& counts);

}  // namespace stormo::bench
