#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/observe/records.h>
#include <stormo/train/loop/run_context.h>
#include <stormo/train/loop/run_model.h>
#include <stormo/train/loop/slow_rank_report.h>
#include <stormo/train/record/step_log.h>

namespace stormo::train {

/// What a run says of itself while it trains: steps, times of ranks, and what may be going wrong.
class RunProgress {
 public:
  /// Both are borrowed.
  RunProgress(RunContext& run, RunModel& model);

  /// When all is made: what is trained, and what is known to be in vain. A collective.
  Status start();
  /// For an epoch of a run that began then.
  void go_on_since(TimePoint began) { started_ = began; }
  /// Shows the last step, in the log if that is due. `agreed`: all ranks come here, behind a step
  /// in which they agreed; then it is a collective. `last`: of the run.
  Status show(bool agreed, bool last = false);
  /// A step is over that all ranks do: so many samples of all of them.
  void end_step(std::int64_t samples);
  /// Numbers that ranks add up with their next agreement, and what follows from them.
  std::span<double> numbers_to_agree() { return slow_ranks_.numbers(); }
  void note_agreed() { slow_ranks_.added_up(hosts_); }
  /// Steps of whose mean loss this rank knows.
  void note_loss(double loss_sum, double samples, std::int64_t steps);
  bool knows_losses() const { return recent_loss_.steps() > 0; }
  /// At the end: whether the model has learned anything.
  void warn_at_chance() const;
  /// What is known of the whole run.
  void note_end(observe::EndRecord& end) const;
  StepLog& log() { return log_; }

 private:
  void warn_at_start() const;
  void show_step(observe::StepRecord record, bool logged);
  Status gather_shares(observe::StepRecord& record);

  RunContext& run_;
  RunModel& model_;
  StepLog log_;
  SlowRankReport slow_ranks_;
  RecentLoss recent_loss_;
  LossWatch loss_watch_;
  std::vector<std::string> hosts_;  // by rank, where there are several
  bool steps_overlap_;
  TimePoint started_;
  TimePoint shown_{};
  bool log_is_due_ = false;
};

}  // namespace stormo::train
