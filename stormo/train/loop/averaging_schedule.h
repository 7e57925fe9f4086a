#pragma once

#include <cstdint>

#include <stormo/base/clock.h>
#include <stormo/observe/records.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// When a run with parameter averaging averages. The same on all ranks.
class AveragingSchedule {
 public:
  /// `period`: steps from one average to the next; where it adapts the most.
  AveragingSchedule(const AveragingOptions& options, int period);

  /// Whether step `number` of the run, from 1, ends with an average whatever the period is.
  bool is_warmup(std::int64_t number) const { return number <= options_.warmup_steps; }
  int period() const { return record_.period; }
  /// Notes the consensus distance at an average after `steps` steps, which took `time`, alike on
  /// all ranks. Where one of them has a bound it changes the period: the distance grows at most
  /// about as the number of steps, and time as that. The period at most doubles.
  void note(double distance, Duration time, std::int64_t steps);
  const observe::AveragingRecord& record() const { return record_; }

 private:
  AveragingOptions options_;
  int longest_;
  observe::AveragingRecord record_;
};

}  // namespace stormo::train
