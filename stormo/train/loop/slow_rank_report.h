#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <stormo/observe/records.h>
#include <stormo/protocol/slow_ranks.h>
#include <stormo/train/loop/run_context.h>
#include <stormo/train/record/step_log.h>
#include <stormo/train/record/step_parts.h>
#include <stormo/transport/tcp/send_times.h>

namespace stormo::train {

/// Measures how long this rank takes for the parts of a step, learns it of the others, and tells
/// who is slow, where ranks do the same steps. What each has measured travels in an agreement that
/// takes place anyway, in every fifth sample. A sample is one step, or as many as take 100 ms.
class SlowRankReport {
 public:
  /// Both are borrowed.
  SlowRankReport(RunContext& run, const StepLog& log);
  ~SlowRankReport();
  SlowRankReport(const SlowRankReport&) = delete;
  SlowRankReport& operator=(const SlowRankReport&) = delete;

  /// A step is over; on all ranks.
  void end_step();
  /// What ranks add up with their next agreement; empty: nothing. The same size on all ranks.
  std::span<double> numbers();
  /// They have. `hosts`: by rank; empty: one host.
  void added_up(const std::vector<std::string>& hosts);

 private:
  struct Sample {
    protocol::PartSeconds parts{};
    double sent = 0;  ///< bytes of a step
    double seconds = 0;
  };
  void note(std::span<const double> of_all, const std::vector<std::string>& hosts,
            observe::SlowRanksRecord& record);
  static constexpr std::size_t kOfRank = protocol::kNumStepParts + 1;  ///< numbers in a sample
  std::size_t size_of_sample() const { return ranks_ * kOfRank + 1; }

  RunContext& run_;
  const StepLog& log_;
  const std::size_t ranks_;
  StepParts parts_;
  std::optional<protocol::SlowRanks> slow_;  // of rank 0
  std::int64_t steps_of_sample_ = 1;
  std::int64_t steps_ = 0;  // of the sample that has begun
  double logged_seconds_ = 0;
  transport::BulkSent sent_;
  std::deque<Sample> samples_;
  std::vector<double> numbers_;
};

}  // namespace stormo::train
